"""The frontend as an ASGI application. Everything it uses is handed in; it keeps nothing of its own."""

import time

from fastapi import FastAPI

from punica_frontend.admission import Admission
from punica_frontend.connection import BodyLimit
from punica_frontend.errors import install_error_handlers
from punica_frontend.figures import Figures
from punica_frontend.generation import Generator
from punica_frontend.routes.cluster import cluster_router
from punica_frontend.routes.generate import generate_router
from punica_frontend.routes.health import health_router
from punica_frontend.routes.metrics import metrics_router
from punica_frontend.routes.models import models_router
from punica_frontend.routes.stream import stream_router
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.config import EngineConfig
from punica_serve.model_config import ModelConfig
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.version import __version__

_DESCRIPTION = (
    "Many LoRA models over one base model. `WS /v1/generate/stream` runs many requests on one socket: send "
    '`{"op": "generate", "request_id": "1", "prompt": "42", "lora_id": "roman"}`, receive frames of its tokens.'
)


def create_app(
    client: SchedulerClient,
    admission: Admission,
    catalog: AdapterCatalog,
    tokenizer: Tokenizer,
    model: ModelConfig,
    engine: EngineConfig,
) -> FastAPI:
    """The routes over ``client``. ``engine`` names the base model and may shorten its context."""
    max_context = engine.context_of(model)
    base_name = engine.served_name
    figures = Figures()
    generator = Generator(
        client, catalog, tokenizer, model, admission, figures, base_name=base_name, max_context=max_context
    )
    app = FastAPI(title="Punica Serve", version=__version__, description=_DESCRIPTION)
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=max_body_bytes(model, engine))
    app.include_router(generate_router(generator))
    app.include_router(stream_router(generator, figures, max_frame_bytes=max_body_bytes(model, engine)))
    app.include_router(
        models_router(
            catalog,
            base_name=base_name,
            base_root=str(engine.model),
            max_context=max_context,
            created_s=int(time.time()),
        )
    )
    app.include_router(cluster_router(client))
    app.include_router(health_router(client, admission))
    app.include_router(metrics_router(client, admission, figures))
    return app


def max_body_bytes(model: ModelConfig, engine: EngineConfig) -> int:
    """Room for any prompt that the context can hold, escaped as it may be, and for all other fields."""
    return (1 << 20) + 64 * engine.context_of(model)
