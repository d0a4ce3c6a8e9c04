"""The frontend as a process: reads the model folder, binds the port, awaits the registry, serves until cancelled."""

import asyncio
import logging
import socket
import threading
from contextlib import aclosing

from punica_frontend.adapters.lifecycle import Lifecycle
from punica_frontend.admission import Admission
from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.http_server import EmbeddedServer, http_server
from punica_frontend.listener import bind, num_connections, raise_file_limit
from punica_frontend.metrics.figures import Figures
from punica_frontend.parts import Parts
from punica_frontend.running import run_server
from punica_frontend.scheduler_client import WireSchedulerClient
from punica_frontend.templates import TemplateRenderer
from punica_frontend.tenancy.door import Door
from punica_frontend.tenancy.exposure import lock_for
from punica_frontend.tenancy.meter import Meter
from punica_frontend.tenancy.retention import Retention
from punica_frontend.tenancy.sessions import Sessions
from punica_frontend.tenancy.usage_writer import UsageWriter
from punica_frontend.waiting_room import registry_once_there
from punica_serve.collector import leave_alone_what_is_there
from punica_serve.config import ClusterConfig
from punica_serve.errors import RegistryUnavailable
from punica_serve.model_config import ModelConfig, read_model_config
from punica_serve.notify import READY, notify
from punica_serve.process import Drain
from punica_serve.registry.shared import shared_adapters
from punica_serve.registry.snapshot import SharedAdapters
from punica_serve.text.tokenizer import Tokenizer
from punica_serve.tls import client_context
from punica_serve.tracing import closing_spans, span_sink

log = logging.getLogger(__name__)


async def serve(
    config: ClusterConfig, token: str, *, scheduler_url: str, host: str | None, port: int | None, drain: Drain
) -> None:
    """Runs a frontend until cancelled or drained; ``host`` and ``port`` override the config's.

    Raises ConfigError for an address that can't be had or is not safe, a scheduler URL that is none, or traces without
    their exporter; ModelRejected for a model folder that can't be served.
    """
    sink = span_sink("frontend", config.tracing.otlp_endpoint)
    host = config.frontend.host if host is None else host
    port = config.frontend.port if port is None else port
    tls = client_context(config.tls) if config.tls else None
    max_connections = num_connections(config.frontend.max_connections, raise_file_limit())
    with bind(host, port) as listener:
        model, tokenizer, shared = await _read_models(config)
        async with (
            registry_once_there(
                config.registry_url, shared, listener=listener, max_connections=max_connections, drain=drain
            ) as registry,
            aclosing(TemplateRenderer(tokenizer.special_tokens)) as templates,
            closing_spans(sink),
        ):
            if registry is None:
                return
            client = WireSchedulerClient(scheduler_url, token, config.links, tls)
            sessions = Sessions(token)
            lock = lock_for(listener, registry, insecure_no_auth=config.frontend.insecure_no_auth)
            parts = Parts(
                config=config,
                model=model,
                tokenizer=tokenizer,
                templates=templates,
                client=client,
                registry=registry,
                adapters=Lifecycle.of(config, model, registry, client, templates),
                admission=Admission(),
                figures=Figures(config.frontend.metrics_names),
                meter=Meter(),
                sessions=sessions,
                door=Door(registry, sessions, lock),
                sink=sink,
            )
            server = _server(parts, max_connections)
            leave_alone_what_is_there()
            log.info("listening on http://%s:%d", host, listener.getsockname()[1])
            notify(READY)
            await _run(parts, client, server, listener, drain)


async def _run(
    parts: Parts, client: WireSchedulerClient, server: EmbeddedServer, listener: socket.socket, drain: Drain
) -> None:
    usage = UsageWriter(parts.meter, parts.registry)
    retention = Retention(parts.registry, parts.config.registry)
    background = (parts.registry.follow(), usage.run(), retention.run(), parts.adapters.run())
    try:
        await run_server(server, listener, client, parts.admission, drain, background)
    finally:
        try:
            await usage.flush()
        except RegistryUnavailable as error:
            log.error("the usage of the last moments is lost: %s", error)


def _server(parts: Parts, max_connections: int) -> EmbeddedServer:
    max_bytes = max_body_bytes(parts.model, parts.config.engine)
    return http_server(
        create_app(parts), parts.figures.num_cut, max_body_bytes=max_bytes, max_connections=max_connections
    )


async def _read_models(config: ClusterConfig) -> tuple[ModelConfig, Tokenizer, SharedAdapters]:
    """Takes as long as reading the files of all adapters does, unless it is cancelled."""
    stop = threading.Event()

    def read() -> tuple[ModelConfig, Tokenizer, SharedAdapters]:
        model = read_model_config(config.engine.model)
        tokenizer = Tokenizer.from_folder(config.engine.tokenizer_folder)
        return model, tokenizer, shared_adapters(config, model, stop=stop)

    try:
        return await asyncio.to_thread(read)
    finally:
        stop.set()  # the thread goes on when this is cancelled, and the process would wait for its end
