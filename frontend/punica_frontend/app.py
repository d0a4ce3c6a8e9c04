"""The frontend as an ASGI application. Everything it uses is handed in; it keeps nothing of its own."""

import time

from fastapi import APIRouter

from punica_frontend.connection import BodyLimit, BodyLimits
from punica_frontend.dashboard.pages import api_page, dashboard_page
from punica_frontend.errors import install_error_handlers
from punica_frontend.generation import Generator
from punica_frontend.head_requests import HeadAsGet
from punica_frontend.openai.conversation import Conversations
from punica_frontend.openai.model_cards import CardMaker
from punica_frontend.openai.models import models_router
from punica_frontend.openai.planning import Planner
from punica_frontend.openai.routes import openai_router
from punica_frontend.openai.tokenize import tokenize_router
from punica_frontend.openapi_page import Api
from punica_frontend.parts import Parts
from punica_frontend.routes.adapters import adapters_router
from punica_frontend.routes.cluster import cluster_router
from punica_frontend.routes.deletions import deletions_router
from punica_frontend.routes.generate import generate_router
from punica_frontend.routes.grants import grants_router
from punica_frontend.routes.health import health_router
from punica_frontend.routes.keys import keys_router
from punica_frontend.routes.metrics import metrics_router
from punica_frontend.routes.pages import page_router, start_router
from punica_frontend.routes.registrations import registrations_router
from punica_frontend.routes.sessions import sessions_router
from punica_frontend.routes.stream import stream_router
from punica_frontend.routes.tenants import tenants_router
from punica_frontend.routes.usage import usage_router
from punica_frontend.routes.vllm import vllm_router
from punica_frontend.routes.warmth import warmth_router
from punica_frontend.routes.watch import watch_router
from punica_frontend.socket_shapes import Shapes
from punica_frontend.tenancy.gate import PUBLIC_PATHS, Gate
from punica_frontend.tgi.errors import install_tgi_errors
from punica_frontend.tgi.info import tgi_info
from punica_frontend.tgi.routes import tgi_router
from punica_frontend.watch.frames import Frames
from punica_serve.config import EngineConfig, FrontendConfig
from punica_serve.model_config import ModelConfig
from punica_serve.version import __version__

_DESCRIPTION = (
    "Many LoRA models over one base model. `WS /v1/generate/stream` runs many requests on one socket: send "
    '`{"op": "generate", "request_id": "1", "prompt": "42", "lora_id": "roman"}`, receive frames of its tokens.'
)

_UPLOAD_TIMEOUT_S = 900.0


def create_app(parts: Parts) -> Api:
    """The routes, behind the gate."""
    limits = BodyLimits(max_body_bytes(parts.model, parts.config.engine))
    dashboard = dashboard_page()
    public_paths = _public_paths(parts.config.frontend) | dashboard.paths
    app = Api(
        title="Punica Serve",
        version=__version__,
        description=_DESCRIPTION,
        needs_key=lambda: not parts.door.is_open,
        public_paths=public_paths,
    )
    install_error_handlers(app)
    install_tgi_errors(app)
    # The last that is added is the first that a request meets.
    app.add_middleware(BodyLimit, limits=limits, by_path=_body_limits(parts))
    app.add_middleware(Gate, door=parts.door, public_paths=public_paths)
    app.add_middleware(HeadAsGet)
    for router in (*_generation(parts), *_adapters(parts), *_cluster(parts), *_tenancy(parts)):
        app.include_router(router)
    app.include_router(start_router(dashboard))
    for page in (dashboard, api_page()):
        app.include_router(page_router(page))
    return app


def _generation(parts: Parts) -> list[APIRouter]:
    engine, model = parts.config.engine, parts.model
    generator = _generator(parts)
    return [
        generate_router(generator),
        *_openai(parts, generator),
        tgi_router(generator, parts.tokenizer, tgi_info(model, engine)),
        metrics_router(
            parts.client,
            parts.registry,
            parts.admission,
            parts.figures,
            base_name=engine.served_name,
            is_public=parts.config.frontend.public_metrics,
        ),
    ]


def _openai(parts: Parts, generator: Generator) -> list[APIRouter]:
    engine, model, tokenizer = parts.config.engine, parts.model, parts.tokenizer
    conversations = Conversations(tokenizer, parts.templates)
    cards = CardMaker(engine.served_name, engine.context_of(model), created_s=int(time.time()))
    planner = Planner(generator, conversations, base_name=engine.served_name)
    shapes = Shapes(generator, planner, tokenizer, base_name=engine.served_name)
    return [
        stream_router(generator, shapes, max_frame_bytes=max_body_bytes(model, engine)),
        openai_router(generator, tokenizer, conversations, base_name=engine.served_name),
        models_router(generator, parts.registry, cards),
        tokenize_router(generator, tokenizer, conversations, model, cards),
    ]


def _generator(parts: Parts) -> Generator:
    return Generator(
        parts.client,
        parts.registry,
        parts.tokenizer,
        parts.model,
        parts.admission,
        parts.figures,
        parts.meter,
        base_name=parts.config.engine.served_name,
        max_context=parts.config.engine.context_of(parts.model),
        logs_requests=parts.config.log.requests,
        sink=parts.sink,
    )


def _adapters(parts: Parts) -> list[APIRouter]:
    registry, client, adapters = parts.registry, parts.client, parts.adapters
    return [
        adapters_router(registry, client),
        warmth_router(registry, client),
        registrations_router(adapters.registrar, adapters.sources, adapters.uploads),
        deletions_router(registry, client, adapters.warden),
        vllm_router(registry, adapters.registrar, adapters.sources, adapters.warden),
    ]


def _body_limits(parts: Parts) -> dict[str, BodyLimits]:
    """Uploads are longer than other bodies, and may come over slow lines."""
    return {"/v1/adapters": BodyLimits(parts.adapters.max_adapter_bytes + (1 << 20), _UPLOAD_TIMEOUT_S)}


def _cluster(parts: Parts) -> list[APIRouter]:
    client, registry = parts.client, parts.registry
    frames = Frames(client)
    return [
        cluster_router(client, registry, frames),
        watch_router(client, registry, frames, parts.door),
        health_router(client, parts.admission),
    ]


def _tenancy(parts: Parts) -> list[APIRouter]:
    return [
        sessions_router(parts.door, parts.sessions),
        tenants_router(parts.registry),
        grants_router(parts.registry),
        keys_router(parts.registry),
        usage_router(parts.registry),
    ]


def _public_paths(frontend: FrontendConfig) -> frozenset[str]:
    """What needs no key, beside the dashboard, which asks for one itself."""
    return PUBLIC_PATHS | {"/metrics"} if frontend.public_metrics else PUBLIC_PATHS


def max_body_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Room for any prompt that the context can hold, escaped as it may be, and for all other fields."""
    return (1 << 20) + 64 * engine.context_of(model)
