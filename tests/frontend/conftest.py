"""A cluster that answers at once, one token for each byte, and an application over it."""

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from byte_tokens import EOS, byte_tokenizer, save_byte_tokenizer
from echo_cluster import EchoCluster
from frontend_process import FrontendProcess, StartFrontend, launch
from punica_frontend.adapters.lifecycle import Lifecycle
from punica_frontend.app import create_app, max_body_bytes
from punica_frontend.dependencies import AppDependencies
from punica_frontend.generation.admission import Admission
from punica_frontend.generation.generator import Generator
from punica_frontend.generation.input_processor import InputProcessor
from punica_frontend.generation.prompts import PromptEncoder
from punica_frontend.generation.request_account import RequestAccounts
from punica_frontend.generation.templates import TemplateRenderer
from punica_frontend.http.http_server import http_server
from punica_frontend.http.listener import bind
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.metrics.metrics import Metrics
from punica_frontend.tenancy.authenticator import Authenticator, AuthMode
from punica_frontend.tenancy.meter import Meter
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.base_model.generation_config import GenerationDefaults
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.links_section import LinksConfig
from punica_serve.config.registry_section import sqlite_url
from punica_serve.errors import AdapterRejected
from punica_serve.links.hello import listen
from punica_serve.protocol import AdapterRef, FrontendToScheduler
from punica_serve.registry.database import Database
from punica_serve.registry.names import SHARED_TENANT
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.text.prompt_limits import PromptLimits
from punica_serve.text.tokenizer import Tokenizer
from scripted_scheduler import ScriptedScheduler
from shared_type_adapters import shared_type_adapters
from tiny_config import tiny_config
from waits import until

CONTEXT = 64
#: The server's limit.
MAX_CONNECTIONS = 50


@pytest.fixture(scope="session", autouse=True)
def _shared_type_adapters() -> Iterator[None]:
    with shared_type_adapters():
        yield


@pytest.fixture
async def scheduler() -> AsyncIterator[ScriptedScheduler]:
    """It waits for longer than any test to take a silent frontend for dead."""
    scheduler = ScriptedScheduler()
    links = LinksConfig(silence_s=3600.0)
    async with listen("127.0.0.1", 0, FrontendToScheduler, scheduler.session, links) as scheduler.port:
        yield scheduler


@pytest.fixture
async def start_frontend(scheduler: ScriptedScheduler, tmp_path: Path) -> AsyncIterator[StartFrontend]:
    """Starts frontends that are linked to the scheduler of the test, with these settings."""
    with contextlib.ExitStack() as stack:

        async def start(**frontend: Any) -> FrontendProcess:
            num_links = scheduler.num_links
            started = launch(tmp_path, scheduler.port, frontend)
            stack.enter_context(started.process)
            stack.callback(started.process.kill)
            await until(lambda: scheduler.num_links > num_links, "a frontend has dialled the scheduler")
            return started

        yield start


@pytest.fixture
def cluster() -> EchoCluster:
    return EchoCluster()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer) -> ModelConfig:
    return tiny_config(
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=CONTEXT,
        name="numbers",
        generation=GenerationDefaults(eos_token_ids=(EOS,), temperature=0.7, top_p=0.9),
    )


@pytest.fixture
def shared() -> SharedAdapters:
    ref = AdapterRef("d1", "/adapters/roman", 100, {"q_proj": 8})
    roman = AdapterVersion(
        SHARED_TENANT, SHARED_TENANT, "roman", 1, ref, ref.uri, None, None, pinned=False, created_s=0.0
    )
    rejected = AdapterRejected("/adapters/broken: `r` must be a positive integer", param="r")
    return SharedAdapters({"roman": roman}, {"broken": rejected})


@pytest.fixture(scope="session")
def empty_registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that has been migrated, to copy: making one takes as long as many a test."""
    file = tmp_path_factory.mktemp("registry") / "registry.db"

    async def make() -> None:
        await (await Registry.open(sqlite_url(file), deadline_s=60.0)).close()

    asyncio.run(make())
    return file


@pytest.fixture
def first_registry(empty_registry: Path) -> Path:
    """The database that a test begins with a copy of."""
    return empty_registry


@pytest.fixture
async def registry(shared: SharedAdapters, first_registry: Path, tmp_path: Path) -> AsyncIterator[Registry]:
    file = tmp_path / "registry.db"
    shutil.copy(first_registry, file)
    registry = Registry(Database(sqlite_url(file), deadline_s=60.0), shared, time.time)
    await registry.refresh()
    yield registry
    await registry.close()


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    engine = EngineConfig(model=Path("/models/numbers"), model_name="numbers")
    return ClusterConfig(engine=engine, data_folder=tmp_path / "data")


@pytest.fixture
def auth_mode() -> AuthMode:
    """The application's authentication mode."""
    return "open"


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer's, for processes that read it themselves."""
    return save_byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def limits(model: ModelConfig) -> PromptLimits:
    return PromptLimits(model.max_position_embeddings)


@pytest.fixture
async def templates(
    tokenizer: Tokenizer, tokenizer_folder: Path, limits: PromptLimits
) -> AsyncIterator[TemplateRenderer]:
    async with contextlib.aclosing(TemplateRenderer(tokenizer.special_tokens, tokenizer_folder, limits)) as templates:
        yield templates


@pytest.fixture
def prompts(tokenizer: Tokenizer, templates: TemplateRenderer, limits: PromptLimits) -> PromptEncoder:
    return PromptEncoder(tokenizer, templates, limits)


@pytest.fixture
def dependencies(
    config: ClusterConfig,
    cluster: EchoCluster,
    registry: Registry,
    tokenizer: Tokenizer,
    model: ModelConfig,
    auth_mode: AuthMode,
    templates: TemplateRenderer,
) -> AppDependencies:
    sessions = Sessions("secret")
    return AppDependencies(
        config=config,
        model=model,
        tokenizer=tokenizer,
        templates=templates,
        client=cluster,
        registry=registry,
        adapters=Lifecycle.of(config, model, registry, cluster, templates),
        admission=Admission(),
        metrics=Metrics(),
        meter=Meter(),
        sessions=sessions,
        authenticator=Authenticator(registry, sessions, auth_mode, config.frontend.cors_origins),
    )


@pytest.fixture
def admission(dependencies: AppDependencies) -> Admission:
    return dependencies.admission


@pytest.fixture
def inputs(
    cluster: EchoCluster, registry: Registry, prompts: PromptEncoder, model: ModelConfig, limits: PromptLimits
) -> InputProcessor:
    return InputProcessor(cluster, registry, prompts, model, base_name="numbers", max_context=limits.max_context)


@pytest.fixture
def accounts(cluster: EchoCluster) -> RequestAccounts:
    return RequestAccounts(Metrics(), Meter(), cluster.report_promises, base_name="numbers")


@pytest.fixture
def generator(
    cluster: EchoCluster,
    registry: Registry,
    tokenizer: Tokenizer,
    inputs: InputProcessor,
    admission: Admission,
    accounts: RequestAccounts,
) -> Generator:
    return Generator(cluster, registry, tokenizer, inputs, admission, accounts)


@pytest.fixture
def app(dependencies: AppDependencies) -> FastAPI:
    return create_app(dependencies)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://frontend") as client:
        yield client


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0) as listener:
        yield listener


@pytest.fixture
async def server(app: FastAPI, dependencies: AppDependencies, listener: socket.socket) -> AsyncIterator[EmbeddedServer]:
    """The application behind a real server."""
    max_bytes = max_body_bytes(dependencies.model, dependencies.config.engine)
    server = http_server(
        app,
        dependencies.metrics.num_cut,
        max_body_bytes=max_bytes,
        max_connections=MAX_CONNECTIONS,
        trusted_proxies=dependencies.config.frontend.trusted_proxies,
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
def address(listener: socket.socket, server: EmbeddedServer) -> str:
    """HOST:PORT of the server."""
    return f"127.0.0.1:{listener.getsockname()[1]}"
