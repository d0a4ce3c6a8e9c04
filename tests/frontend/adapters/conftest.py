"""The world of adapters, and the routes over it: see ``adapter_world``."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter_world import Bringing, World, bringing, check
from echo_cluster import EchoCluster
from punica_frontend.adapters import deletions
from punica_frontend.adapters import reconciler as reconciler_module
from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.garbage_collector import AdapterGarbageCollector
from punica_frontend.adapters.pins import Pins
from punica_frontend.adapters.reconciler import AdapterReconciler
from punica_frontend.adapters.registration import Registrar
from punica_frontend.adapters.staging import Staging
from punica_frontend.api.caller import Caller
from punica_frontend.api.errors import install_error_handlers
from punica_frontend.routes.adapters import adapters_router
from punica_frontend.routes.deletions import deletions_router
from punica_frontend.routes.pinning import pinning_router
from punica_frontend.routes.registrations import registrations_router
from punica_frontend.routes.vllm import vllm_router
from punica_serve.config.store_section import StoreConfig
from punica_serve.errors import AdapterRejected, StoreUnavailable
from punica_serve.protocol import TenantQuota
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters
from punica_serve.store.adapter_store import AdapterStore
from punica_serve.store.sources import Sources
from punica_serve.store.upload import Uploads
from tiny_check import check_for_tiny


@pytest.fixture(name="bringing")
def bringing_fixture() -> Bringing:
    return bringing


@pytest.fixture
def shared() -> SharedAdapters:
    return SharedAdapters()


@pytest.fixture
async def world(
    tmp_path: Path, registry: Registry, cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(deletions, "GRACE_S", 0.0)
    monkeypatch.setattr(reconciler_module, "INTERVAL_S", 0.05)
    store = AdapterStore(str(tmp_path / "store"))
    staging = Staging(tmp_path / "staging")
    removing = Deletions(registry, store, cluster, by="frontend-1")
    yield World(
        registry,
        store,
        staging,
        Registrar(registry, store, cluster, staging, check, base_name="numbers"),
        removing,
        Pins(registry, cluster),
        AdapterGarbageCollector(registry, store, cluster, staging, removing),
        cluster,
        tmp_path,
    )
    staging.close()


class CallerFromHeader:
    """Lets the test say who calls: "TENANT ROLE"; everybody else is the administrator."""

    def __init__(self, app: ASGIApp, registry: Registry) -> None:
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tenant, role = HTTPConnection(scope).headers.get("caller", "default admin").split()
        assert role in ("admin", "user")
        tenant_id = self._registry.snapshot.tenant(tenant).tenant_id
        scope["state"] = {"caller": Caller(tenant_id, tenant, role)}  # type: ignore[arg-type]
        await self._app(scope, receive, send)


class ScriptedSources(Sources):
    """The last part of a URI is the adapter's content, or what is wrong."""

    def __init__(self) -> None:
        super().__init__(StoreConfig(), check_for_tiny)
        self.fetched: list[str] = []

    async def fetch(self, uri: str, folder: Path, *, is_admin: bool) -> None:
        self.fetched.append(uri)
        content = uri.rpartition("/")[2]
        if content == "missing":
            raise AdapterRejected("there is nothing", param="uri")
        if content == "broken":
            raise AdapterRejected("tensor `x` is missing", param="x")
        if content == "down":
            raise StoreUnavailable("the store is down")
        await bringing(content)(folder)


@pytest.fixture
def sources() -> ScriptedSources:
    return ScriptedSources()


@pytest.fixture
def fetched(sources: ScriptedSources) -> list[str]:
    return sources.fetched


@pytest.fixture
async def api(world: World, sources: ScriptedSources) -> AsyncIterator[httpx.AsyncClient]:
    """The routes of adapters, with a reconciler behind them."""
    for tenant in ("acme", "globex"):
        await world.registry.put_tenant(tenant, TenantQuota(), by="test")
    reconciler = AdapterReconciler(world.registry, world.deletions, world.pins, world.collector)
    app = FastAPI()
    install_error_handlers(app)
    app.add_middleware(CallerFromHeader, registry=world.registry)
    app.include_router(registrations_router(world.registrar, sources, Uploads(1 << 20)))
    app.include_router(adapters_router(world.registry, world.cluster))
    app.include_router(pinning_router(world.registry, world.cluster))
    app.include_router(deletions_router(world.registry, world.cluster, reconciler))
    app.include_router(vllm_router(world.registry, world.registrar, sources, reconciler))
    running = asyncio.create_task(reconciler.run())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://frontend", timeout=60.0) as client:
        yield client
    running.cancel()
    await asyncio.wait([running])
