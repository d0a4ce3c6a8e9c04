"""The frontend as an ASGI application. It receives all its dependencies and keeps no state of its own."""

import time

from fastapi import APIRouter

from punica_frontend.api.errors import install_error_handlers
from punica_frontend.api_application import Api
from punica_frontend.dashboard.pages import api_page, dashboard_page
from punica_frontend.dependencies import AppDependencies
from punica_frontend.fields.policy import FieldPolicy
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.input_processor import InputProcessor
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.rate_limits import RateLimitHeaders
from punica_frontend.generation.request_account import RequestAccounts
from punica_frontend.generation.request_spans import FrontendSpans
from punica_frontend.http.connection import BodyLimit, BodyLimits
from punica_frontend.http.head_requests import HeadAsGet
from punica_frontend.http.trailing_slashes import WithoutTrailingSlash
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.model_cards import CardMaker
from punica_frontend.openai.models import models_router
from punica_frontend.openai.request_planner import RequestPlanner
from punica_frontend.openai.routes import openai_router
from punica_frontend.openai.tokenize import tokenize_router
from punica_frontend.routes.adapters import adapters_router
from punica_frontend.routes.cluster import cluster_router
from punica_frontend.routes.deletions import deletions_router
from punica_frontend.routes.generate import generate_router
from punica_frontend.routes.grants import grants_router
from punica_frontend.routes.health import health_router
from punica_frontend.routes.keys import keys_router
from punica_frontend.routes.metrics import metrics_router
from punica_frontend.routes.pages import page_router, start_router
from punica_frontend.routes.pinning import pinning_router
from punica_frontend.routes.registrations import registrations_router
from punica_frontend.routes.sessions import sessions_router
from punica_frontend.routes.stream import stream_router
from punica_frontend.routes.tenants import tenants_router
from punica_frontend.routes.usage import usage_router
from punica_frontend.routes.vllm import vllm_router
from punica_frontend.routes.watch import watch_router
from punica_frontend.tenancy.auth_middleware import PUBLIC_PATHS, AuthMiddleware
from punica_frontend.tgi.errors import install_tgi_errors
from punica_frontend.tgi.info import tgi_info
from punica_frontend.tgi.routes import tgi_router
from punica_frontend.watch.frames import Frames
from punica_frontend.websocket.openai_frames import Shapes
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.frontend_section import FrontendConfig
from punica_serve.store.pace import MinRate
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.version import __version__

_DESCRIPTION = (
    "Many LoRA models over one base model. `WS /v1/generate/stream` runs many requests on one socket: send "
    '`{"op": "generate", "request_id": "1", "prompt": "42", "lora_id": "roman"}`, receive frames of its tokens.'
)

#: For a whole upload. ``MinRate`` cuts slower clients long before.
_UPLOAD_TIMEOUT_S = 900.0


def create_app(dependencies: AppDependencies) -> Api:
    """Returns the application: all routes, behind authentication."""
    limits = BodyLimits(max_body_bytes(dependencies.model, dependencies.config.engine))
    dashboard, api = dashboard_page(), api_page()
    public_paths = _public_paths(dependencies.config.frontend) | dashboard.paths | api.paths
    app = Api(
        title="Punica Serve",
        version=__version__,
        description=_DESCRIPTION,
        needs_key=lambda: not dependencies.authenticator.is_open,
        public_paths=public_paths,
        cors_origins=dependencies.config.frontend.cors_origins,
        num_answers=dependencies.metrics.num_answers,
    )
    install_error_handlers(app)
    install_tgi_errors(app)
    # The middleware added last is the outermost.
    app.add_middleware(BodyLimit, limits=limits, by_path=_body_limits(dependencies))
    app.add_middleware(AuthMiddleware, authenticator=dependencies.authenticator, public_paths=public_paths)
    app.add_middleware(RateLimitHeaders)
    app.add_middleware(HeadAsGet)
    app.add_middleware(WithoutTrailingSlash)
    for router in (
        *_generation(dependencies),
        *_adapters(dependencies),
        *_cluster(dependencies),
        *_tenancy(dependencies),
    ):
        app.include(router)
    app.include(start_router(dashboard))
    for page in (dashboard, api):
        app.include(page_router(page))
    return app


def _generation(dependencies: AppDependencies) -> list[APIRouter]:
    engine, model = dependencies.config.engine, dependencies.model
    prompts = PromptEncoder(dependencies.tokenizer, dependencies.templates, PromptLimits(engine.context_of(model)))
    generator = _generator(dependencies, prompts)
    fields = FieldPolicy(dependencies.config.frontend.unknown_fields, dependencies.metrics)
    return [
        # A request looks at the routes in this order, so those asked most come first.
        *_openai(dependencies, generator, prompts, fields),
        generate_router(generator),
        tgi_router(generator, dependencies.tokenizer, prompts, fields, tgi_info(model, engine)),
        metrics_router(
            dependencies.client,
            dependencies.registry,
            dependencies.admission,
            dependencies.metrics,
            base_name=engine.served_name,
            cache_dtype=engine.dtype_of(model),
            is_public=dependencies.config.frontend.public_metrics,
        ),
    ]


def _openai(
    dependencies: AppDependencies, generator: Generator, prompts: PromptEncoder, fields: FieldPolicy
) -> list[APIRouter]:
    engine, model, tokenizer = dependencies.config.engine, dependencies.model, dependencies.tokenizer
    conversations = Conversations(tokenizer, dependencies.templates, prompts)
    cards = CardMaker(engine.served_name, engine.context_of(model), created_s=int(time.time()))
    planner = RequestPlanner(generator, conversations, fields, base_name=engine.served_name)
    shapes = Shapes(generator, planner, tokenizer, base_name=engine.served_name)
    return [
        openai_router(generator, planner, tokenizer, base_name=engine.served_name),
        stream_router(generator, shapes, max_frame_bytes=max_body_bytes(model, engine)),
        models_router(generator, dependencies.registry, cards),
        tokenize_router(generator, tokenizer, prompts, conversations, fields, model, cards),
    ]


def _generator(dependencies: AppDependencies, prompts: PromptEncoder) -> Generator:
    config, model = dependencies.config, dependencies.model
    client, registry, base_name = dependencies.client, dependencies.registry, config.engine.served_name
    max_context = config.engine.context_of(model)
    inputs = InputProcessor(client, registry, prompts, model, base_name=base_name, max_context=max_context)
    accounts = RequestAccounts(
        dependencies.metrics,
        dependencies.meter,
        client.report_promises,
        base_name=base_name,
        logs_requests=config.log.requests,
        spans=FrontendSpans(dependencies.sink) if dependencies.sink else None,
    )
    return Generator(client, registry, dependencies.tokenizer, inputs, dependencies.admission, accounts)


def _adapters(dependencies: AppDependencies) -> list[APIRouter]:
    registry, client, adapters = dependencies.registry, dependencies.client, dependencies.adapters
    return [
        adapters_router(registry, client),
        pinning_router(registry, client),
        registrations_router(adapters.registrar, adapters.sources, adapters.uploads),
        deletions_router(registry, client, adapters.reconciler),
        vllm_router(registry, adapters.registrar, adapters.sources, adapters.reconciler),
    ]


def _body_limits(dependencies: AppDependencies) -> dict[str, BodyLimits]:
    """Uploads are longer than other bodies and may arrive over slow connections."""
    return {
        "/v1/adapters": BodyLimits(dependencies.adapters.max_adapter_bytes + (1 << 20), _UPLOAD_TIMEOUT_S, MinRate())
    }


def _cluster(dependencies: AppDependencies) -> list[APIRouter]:
    client, registry = dependencies.client, dependencies.registry
    frames = Frames(client)
    return [
        cluster_router(client, registry, frames),
        watch_router(client, registry, frames, dependencies.authenticator),
        health_router(client, dependencies.admission),
    ]


def _tenancy(dependencies: AppDependencies) -> list[APIRouter]:
    return [
        sessions_router(dependencies.authenticator, dependencies.sessions),
        tenants_router(dependencies.registry),
        grants_router(dependencies.registry),
        keys_router(dependencies.registry),
        usage_router(dependencies.registry),
    ]


def _public_paths(frontend: FrontendConfig) -> frozenset[str]:
    """Returns the paths that need no key. Browser pages need none either: they ask for one themselves."""
    return PUBLIC_PATHS | {"/metrics"} if frontend.public_metrics else PUBLIC_PATHS


def max_body_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Returns a limit that fits any prompt of the context's length, however escaped, and all other fields."""
    return (1 << 20) + 64 * engine.context_of(model)
