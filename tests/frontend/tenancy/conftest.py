"""An application that wants keys, two tenants with an adapter each, and keys of them and of an administrator."""

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from punica_frontend.tenancy.authenticator import AuthMode
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.registry import Registry
from tenant_keys import ClientOf, Keys


@pytest.fixture
def auth_mode() -> AuthMode:
    return "keys"


@pytest.fixture
async def keys(registry: Registry) -> Keys:
    secrets = []
    for tenant, adapter in (("acme", "latin"), ("bolt", "greek")):
        tenant_id = (await registry.put_tenant(tenant, quota=TenantQuota(), by="the test")).tenant_id
        ref = AdapterRef(adapter.encode().hex().ljust(64, "0"), f"/store/{adapter}", 100, {"q_proj": 8})
        await registry.register(
            tenant_id, adapter, ref, source_uri=None, base_model=None, chat_template=None, by="the test"
        )
        secrets.append((await registry.make_key(tenant, "user", "", None, by="the test"))[1])
    admin = (await registry.make_key("default", "admin", "", None, by="the test"))[1]
    return Keys(registry, admin, *secrets)


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
