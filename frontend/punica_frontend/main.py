"""The frontend process: reads the model folder, binds the port, waits for the registry, serves until cancelled."""

import asyncio
import logging
import socket
import ssl
import threading
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field

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
from punica_frontend.tenancy.authenticator import Authenticator, AuthMode
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
from punica_serve.process.tracing import SpanSink, closing_spans, span_sink
from punica_serve.registry.checked_adapters import CheckedAdapters
from punica_serve.registry.config_adapters import shared_adapters
from punica_serve.registry.registry import Registry
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
    frontend = _Frontend(
        config=config,
        token=token,
        scheduler_url=scheduler_url,
        drain=drain,
        sink=span_sink("frontend", config.tracing.otlp_endpoint),
        tls=client_context(config.tls) if config.tls else None,
        https=server_context(config.frontend.tls) if config.frontend.tls else None,
        max_connections=num_connections(config.frontend.max_connections, raise_file_limit()),
    )
    host = config.frontend.host if host is None else host
    port = config.frontend.port if port is None else port
    with bind(host, port) as listener:
        await frontend.serve_on(listener, checked)


@dataclass(frozen=True, slots=True)
class _Models:
    """The base model's configuration and tokenizer, and the config file's adapters."""

    model: ModelConfig
    tokenizer: Tokenizer
    shared: SharedAdapters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frontend:
    """A frontend before it serves: what its config and its options give."""

    config: ClusterConfig
    token: str = field(repr=False)
    scheduler_url: str
    drain: Drain
    #: Exports traces; None when tracing is off.
    sink: SpanSink | None
    #: For the scheduler's link, and for clients.
    tls: ssl.SSLContext | None
    https: ssl.SSLContext | None
    max_connections: int

    async def serve_on(self, listener: socket.socket, checked: CheckedAdapters | None) -> None:
        """Reads the models, waits for the registry, and serves. Returns early if drained before that."""
        models = await _read_models(self.config, checked)
        async with (
            self._registry(listener, models.shared) as registry,
            aclosing(_renderer(self.config, models)) as templates,
            closing_spans(self.sink),
        ):
            if registry is not None:
                await self._serve(listener, models, registry, templates)

    def _registry(
        self, listener: socket.socket, shared: SharedAdapters
    ) -> AbstractAsyncContextManager[Registry | None]:
        return registry_when_available(
            self.config.registry_url,
            shared,
            listener=listener,
            max_connections=self.max_connections,
            drain=self.drain,
            tls=self.https,
            deadline_s=self.config.registry.timeout_s,
        )

    async def _serve(
        self, listener: socket.socket, models: _Models, registry: Registry, templates: TemplateRenderer
    ) -> None:
        client = WireSchedulerClient(self.scheduler_url, self.token, self.config.links, self.tls)
        auth_mode = auth_mode_for(listener, registry, insecure_no_auth=self.config.frontend.insecure_no_auth)
        dependencies = self._dependencies(models, registry, templates, client, auth_mode)
        server = _server(dependencies, self.max_connections, self.https)
        tune_gc()
        log.info("listening on %s://%s:%d", "https" if self.https else "http", *listener.getsockname()[:2])
        notify(READY)
        await _run(dependencies, client, server, listener, self.drain)

    def _dependencies(
        self,
        models: _Models,
        registry: Registry,
        templates: TemplateRenderer,
        client: WireSchedulerClient,
        auth_mode: AuthMode,
    ) -> AppDependencies:
        sessions = Sessions(self.token)
        return AppDependencies(
            config=self.config,
            model=models.model,
            tokenizer=models.tokenizer,
            templates=templates,
            client=client,
            registry=registry,
            adapters=Lifecycle.of(self.config, models.model, registry, client, templates),
            admission=Admission(),
            metrics=Metrics(self.config.frontend.metrics_names),
            meter=Meter(),
            sessions=sessions,
            authenticator=Authenticator(registry, sessions, auth_mode, self.config.frontend.cors_origins),
            sink=self.sink,
        )


def _renderer(config: ClusterConfig, models: _Models) -> TemplateRenderer:
    limits = PromptLimits(config.engine.context_of(models.model))
    return TemplateRenderer(models.tokenizer.special_tokens, config.engine.tokenizer_folder, limits)


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


async def _read_models(config: ClusterConfig, checked: CheckedAdapters | None) -> _Models:
    """Reads the models in a thread; cancelling stops it between files."""
    stop = threading.Event()

    def read() -> _Models:
        model = read_model_config(config.engine.model)
        tokenizer = Tokenizer.from_folder(config.engine.tokenizer_folder)
        return _Models(model, tokenizer, shared_adapters(config, model, stop=stop, checked=checked))

    try:
        models = await asyncio.to_thread(read)
    finally:
        stop.set()  # on cancellation too: the process would wait for the thread
    for setting in models.model.generation.not_applied:
        log.warning("%s: not implemented, so answers may differ from those of transformers", setting)
    return models
