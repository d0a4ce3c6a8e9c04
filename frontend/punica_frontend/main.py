"""The frontend process: reads the model folder, binds the port, waits for the registry, serves until cancelled."""

import asyncio
import logging
import socket
import ssl
import threading
from contextlib import aclosing

from punica_frontend.adapters.lifecycle import Lifecycle
from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.dependencies import AppDependencies
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.http.http_server import http_server
from punica_frontend.http.listener import bind, num_connections, raise_file_limit
from punica_frontend.http.startup_server import registry_when_available
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.running import run_server
from punica_frontend.scheduler_link.wire_scheduler_client import WireSchedulerClient
from punica_frontend.tenancy.authenticator import Authenticator
from punica_frontend.tenancy.exposure import auth_mode_for
from punica_frontend.tenancy.meter import Meter
from punica_frontend.tenancy.retention import Retention
from punica_frontend.tenancy.sessions import Sessions
from punica_frontend.tenancy.usage_writer import UsageWriter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.links.https_context import server_context
from punica_serve.links.ssl_context import client_context
from punica_serve.process.memory_tuning import keep_trimming_heap, tune_gc
from punica_serve.process.readiness import READY, notify
from punica_serve.process.run import Drain
from punica_serve.process.tracing import closing_spans, span_sink
from punica_serve.registry.checked_adapters import CheckedAdapters
from punica_serve.registry.config_adapters import shared_adapters
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


async def serve(
    config: ClusterConfig,
    token: str,
    *,
    scheduler_url: str,
    host: str | None,
    port: int | None,
    drain: Drain,
    checked: CheckedAdapters | None = None,
) -> None:
    """Runs a frontend until cancelled or drained; ``host`` and ``port`` override the config's. Adapters of the config
    that are ``checked`` are not read again.

    Raises ConfigError for an address that is unavailable or unsafe, an invalid scheduler URL, or tracing without its
    exporter; ModelRejected for a model folder that can't be served.
    """
    sink = span_sink("frontend", config.tracing.otlp_endpoint)
    host = config.frontend.host if host is None else host
    port = config.frontend.port if port is None else port
    tls = client_context(config.tls) if config.tls else None
    https = server_context(config.frontend.tls) if config.frontend.tls else None
    max_connections = num_connections(config.frontend.max_connections, raise_file_limit())
    with bind(host, port) as listener:
        model, tokenizer, shared = await _read_models(config, checked)
        async with (
            registry_when_available(
                config.registry_url,
                shared,
                listener=listener,
                max_connections=max_connections,
                drain=drain,
                tls=https,
                deadline_s=config.registry.timeout_s,
            ) as registry,
            aclosing(_renderer(config, model, tokenizer)) as templates,
            closing_spans(sink),
        ):
            if registry is None:
                return
            client = WireSchedulerClient(scheduler_url, token, config.links, tls)
            sessions = Sessions(token)
            auth_mode = auth_mode_for(listener, registry, insecure_no_auth=config.frontend.insecure_no_auth)
            dependencies = AppDependencies(
                config=config,
                model=model,
                tokenizer=tokenizer,
                templates=templates,
                client=client,
                registry=registry,
                adapters=Lifecycle.of(config, model, registry, client, templates),
                admission=Admission(),
                metrics=Metrics(config.frontend.metrics_names),
                meter=Meter(),
                sessions=sessions,
                authenticator=Authenticator(registry, sessions, auth_mode, config.frontend.cors_origins),
                sink=sink,
            )
            server = _server(dependencies, max_connections, https)
            tune_gc()
            log.info("listening on %s://%s:%d", "https" if https else "http", host, listener.getsockname()[1])
            notify(READY)
            await _run(dependencies, client, server, listener, drain)


def _renderer(config: ClusterConfig, model: ModelConfig, tokenizer: Tokenizer) -> TemplateRenderer:
    limits = PromptLimits(config.engine.context_of(model))
    return TemplateRenderer(tokenizer.special_tokens, config.engine.tokenizer_folder, limits)


async def _run(
    dependencies: AppDependencies,
    client: WireSchedulerClient,
    server: EmbeddedServer,
    listener: socket.socket,
    drain: Drain,
) -> None:
    usage = UsageWriter(dependencies.meter, dependencies.registry)
    retention = Retention(dependencies.registry, dependencies.config.registry)
    background = (
        dependencies.registry.follow(),
        usage.run(),
        retention.run(),
        dependencies.adapters.run(),
        keep_trimming_heap(),
    )
    try:
        await run_server(server, listener, client, dependencies.admission, drain, background)
    finally:
        await usage.close()


def _server(dependencies: AppDependencies, max_connections: int, tls: ssl.SSLContext | None) -> EmbeddedServer:
    max_bytes = max_body_bytes(dependencies.model, dependencies.config.engine)
    return http_server(
        create_app(dependencies),
        dependencies.metrics.num_cut,
        max_body_bytes=max_bytes,
        max_connections=max_connections,
        trusted_proxies=dependencies.config.frontend.trusted_proxies,
        tls=tls,
    )


async def _read_models(
    config: ClusterConfig, checked: CheckedAdapters | None
) -> tuple[ModelConfig, Tokenizer, SharedAdapters]:
    """Reads the model, the tokenizer and the config file's adapters in a thread; cancelling stops it between files."""
    stop = threading.Event()

    def read() -> tuple[ModelConfig, Tokenizer, SharedAdapters]:
        model = read_model_config(config.engine.model)
        tokenizer = Tokenizer.from_folder(config.engine.tokenizer_folder)
        return model, tokenizer, shared_adapters(config, model, stop=stop, checked=checked)

    try:
        model, tokenizer, shared = await asyncio.to_thread(read)
    finally:
        stop.set()  # on cancellation too: the process would wait for the thread
    for setting in model.generation.not_applied:
        log.warning("%s: not implemented, so answers may differ from those of transformers", setting)
    return model, tokenizer, shared
