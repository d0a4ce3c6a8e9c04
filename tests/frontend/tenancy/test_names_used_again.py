"""Over HTTP: a tenant is deleted and another made under its name, which sees nothing of the first."""

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_frontend.dependencies import AppDependencies
from punica_frontend.tenancy.usage_writer import UsageWriter
from punica_serve.paging.prefix_hash import hints_of
from punica_serve.protocol import PrefixCaching
from tenant_keys import ClientOf, Keys


@pytest.fixture
def admin(client_of: ClientOf, keys: Keys) -> httpx.AsyncClient:
    client: httpx.AsyncClient = client_of(keys.admin)
    return client


async def made_again(admin: httpx.AsyncClient, keys: Keys, client_of: ClientOf) -> tuple[str, httpx.AsyncClient]:
    """Deletes acme and makes it anew; the first's id, and a client of a user of the second."""
    await admin.delete("/v1/adapters/acme/latin", params={"wait_s": 0})
    gone = (await admin.delete("/v1/tenants/acme")).json()
    await admin.put("/v1/tenants/acme", json={})
    _, secret = await keys.make("acme")
    return gone["tenant_id"], client_of(secret)


async def test_the_second_sees_no_usage_and_no_adapters_of_the_first(
    admin: httpx.AsyncClient, client_of: ClientOf, keys: Keys, dependencies: AppDependencies
) -> None:
    old = client_of(keys.acme)
    await old.post("/v1/generate", json={"prompt": "42", "lora_id": "latin"})
    digest = keys.registry.snapshot.adapters(keys.registry.snapshot.tenant("acme").tenant_id)[-1].ref.digest
    first_id, user = await made_again(admin, keys, client_of)
    await UsageWriter(
        dependencies.meter, dependencies.registry
    ).flush()  # counted before the deletion, written after it
    assert (await old.get("/v1/usage")).status_code == 401
    assert (await user.get("/v1/usage")).json()["data"] == []
    assert (await user.get(f"/v1/adapter-deletions/{digest}")).status_code == 404
    assert (await user.get("/v1/adapters/latin")).status_code == 404
    assert [card["name"] for card in (await user.get("/v1/adapters")).json()["data"]] == ["roman"]
    assert (await user.get("/v1/usage", params={"tenant_id": first_id})).status_code == 403


@pytest.mark.parametrize("salt", [{}, {"cache_salt": "acme"}])
async def test_the_second_shares_no_cached_page_of_the_first(
    admin: httpx.AsyncClient, client_of: ClientOf, keys: Keys, cluster: EchoCluster, salt: dict[str, str]
) -> None:
    """Pages are found by the tenant's id, which no other tenant gets."""
    body = {"prompt": "42" * 10, **salt}
    await client_of(keys.acme).post("/v1/generate", json=body)
    first_id, user = await made_again(admin, keys, client_of)
    await user.post("/v1/generate", json=body)
    first, second = cluster.requests
    assert first.tenant_id == first_id != second.tenant_id and first.prompt_ids == second.prompt_ids
    found = [set(hints_of(each, PrefixCaching("model"), 4, each.prompt_ids)) for each in cluster.requests]
    assert all(found) and not found[0] & found[1]


async def test_administrators_read_the_first_by_its_id(
    admin: httpx.AsyncClient, client_of: ClientOf, keys: Keys, dependencies: AppDependencies
) -> None:
    await client_of(keys.acme).post("/v1/generate", json={"prompt": "42", "lora_id": "latin"})
    first_id, _ = await made_again(admin, keys, client_of)
    await UsageWriter(dependencies.meter, dependencies.registry).flush()
    (row,) = (await admin.get("/v1/usage", params={"tenant_id": first_id})).json()["data"]
    assert (row["tenant_id"], row["tenant"], row["adapter"], row["requests"]) == (first_id, "acme", "acme/latin", 1)
    assert row in (await admin.get("/v1/usage")).json()["data"]
    assert (await admin.get("/v1/usage", params={"tenant": "acme"})).json()["data"] == []
    log = (await admin.get("/v1/audit", params={"tenant_id": first_id})).json()["data"]
    assert [entry["action"] for entry in log][:2] == ["tenant.delete", "adapter.delete"]
    log = (await admin.get("/v1/audit", params={"tenant": "acme"})).json()["data"]
    assert [entry["action"] for entry in log] == ["key.make", "tenant.put"]


@pytest.mark.parametrize("path", ["/v1/usage", "/v1/audit"])
async def test_an_unknown_tenant_is_an_error(admin: httpx.AsyncClient, path: str) -> None:
    unknown = await admin.get(path, params={"tenant": "nobody"})
    assert (unknown.status_code, "name a deleted tenant by `tenant_id`" in unknown.text) == (404, True)
    both = await admin.get(path, params={"tenant": "acme", "tenant_id": "x"})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "tenant_id")
    assert (await admin.get(path, params={"tenant_id": "nul\0"})).json()["data"] == []


async def test_a_session_of_the_first_is_none_of_the_second(
    admin: httpx.AsyncClient, client: httpx.AsyncClient, client_of: ClientOf, keys: Keys
) -> None:
    await client.post("/v1/login", json={"key": keys.acme}, headers={"origin": "http://frontend"})
    assert (await client.get("/v1/models")).status_code == 200
    await made_again(admin, keys, client_of)
    assert (await client.get("/v1/models")).status_code == 401


async def test_the_last_admin_key_is_revoked_only_where_somebody_insists(
    admin: httpx.AsyncClient, client_of: ClientOf, keys: Keys
) -> None:
    path = f"/v1/keys/{keys.admin.split('-')[1]}"
    refused = await admin.delete(path)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (409, "last_admin_key", "force")
    assert "create another first" in error["message"]
    assert (await admin.delete(path, params={"force": True})).status_code == 200
    assert (await admin.get("/v1/keys")).status_code == 401
