"""An application that wants keys, two tenants with an adapter each, and keys of them and of an administrator."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from punica_frontend.tenancy.authenticator import AuthMode
from punica_serve.config.registry_section import sqlite_url
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.registry import Registry
from tenant_keys import ClientOf, Keys


@pytest.fixture
def auth_mode() -> AuthMode:
    return "keys"


class KeyedRegistry(NamedTuple):
    """A database with both tenants, and the secrets of its keys."""

    file: Path
    admin: str
    acme: str
    bolt: str


@pytest.fixture(scope="session")
def keyed_registry(empty_registry: Path, tmp_path_factory: pytest.TempPathFactory) -> KeyedRegistry:
    """To copy: each of its changes takes as long as many a test."""
    file = Path(shutil.copy(empty_registry, tmp_path_factory.mktemp("keyed") / "registry.db"))
    return KeyedRegistry(file, *asyncio.run(_make_keys(file)))


async def _make_keys(file: Path) -> tuple[str, str, str]:
    registry = await Registry.open(sqlite_url(file), deadline_s=60.0)
    secrets = []
    for tenant, adapter in (("acme", "latin"), ("bolt", "greek")):
        tenant_id = (await registry.put_tenant(tenant, quota=TenantQuota(), by="the test")).tenant_id
        ref = AdapterRef(adapter.encode().hex().ljust(64, "0"), f"/store/{adapter}", 100, {"q_proj": 8})
        await registry.register(
            tenant_id, adapter, ref, source_uri=None, base_model=None, chat_template=None, by="the test"
        )
        secrets.append((await registry.make_key(tenant, "user", "", None, by="the test"))[1])
    admin = (await registry.make_key("default", "admin", "", None, by="the test"))[1]
    await registry.close()
    return admin, secrets[0], secrets[1]


@pytest.fixture
def first_registry(request: pytest.FixtureRequest, empty_registry: Path) -> Path:
    if "keys" not in request.fixturenames:
        return empty_registry
    keyed: KeyedRegistry = request.getfixturevalue("keyed_registry")
    return keyed.file


@pytest.fixture
def keys(registry: Registry, keyed_registry: KeyedRegistry) -> Keys:
    _, *secrets = keyed_registry
    return Keys(registry, *secrets)


@pytest.fixture
async def client_of(app: FastAPI) -> AsyncIterator[ClientOf]:
    """Clients of the application, by their API keys."""
    clients = []

    def make(secret: str | None) -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {secret}"} if secret else {}
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        clients.append(httpx.AsyncClient(transport=transport, base_url="http://frontend", headers=headers))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
