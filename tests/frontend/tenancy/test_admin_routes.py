"""/v1/tenants, /v1/keys, grants, /v1/usage, /v1/audit, /v1/login: over the application that wants keys."""

from http.cookies import SimpleCookie
from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_frontend.dependencies import AppDependencies
from punica_frontend.tenancy.usage_writer import UsageWriter
from punica_serve.protocol import AdapterRef, Slo, TenantQuota
from tenant_keys import ClientOf, Keys


@pytest.fixture
def admin(client_of: ClientOf, keys: Keys) -> httpx.AsyncClient:
    client: httpx.AsyncClient = client_of(keys.admin)
    return client


@pytest.fixture
def acme(client_of: ClientOf, keys: Keys) -> httpx.AsyncClient:
    client: httpx.AsyncClient = client_of(keys.acme)
    return client


ADMIN_ONLY = [
    ("GET", "/v1/tenants", None),
    ("PUT", "/v1/tenants/acme", {}),
    ("PATCH", "/v1/tenants/acme", {}),
    ("DELETE", "/v1/tenants/acme", None),
    ("GET", "/v1/tenants/acme/grants", None),
    ("PUT", "/v1/tenants/acme/grants/bolt/greek", None),
    ("DELETE", "/v1/tenants/acme/grants/bolt/greek", None),
    ("GET", "/v1/keys", None),
    ("POST", "/v1/keys", {"tenant": "acme"}),
    ("DELETE", "/v1/keys/abc", None),
    ("GET", "/v1/audit", None),
    ("GET", "/metrics", None),
    ("POST", "/v1/cluster/drain", {"gpu": "CPU-1"}),
]


@pytest.mark.parametrize(("method", "path", "body"), ADMIN_ONLY)
async def test_routes_for_administrators(
    acme: httpx.AsyncClient, keys: Keys, method: str, path: str, body: Any
) -> None:
    before = keys.registry.snapshot.revision
    response = await acme.request(method, path, json=body)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"
    assert keys.registry.snapshot.revision == before


async def test_a_tenant_is_made_changed_and_deleted(admin: httpx.AsyncClient, keys: Keys) -> None:
    made = (await admin.put("/v1/tenants/carl", json={"max_concurrent": 3, "max_adapters": 5})).json()
    assert (made["name"], made["max_concurrent"], made["max_adapters"], made["tokens_per_min"]) == ("carl", 3, 5, None)
    assert keys.registry.snapshot.tenant("carl").quota == TenantQuota(max_concurrent=3)
    changed = (await admin.put("/v1/tenants/carl", json={"tokens_per_min": 1_000})).json()
    assert (changed["max_concurrent"], changed["tokens_per_min"]) == (None, 1_000)
    patched = (await admin.patch("/v1/tenants/carl", json={"max_concurrent": 0})).json()
    assert patched == {**changed, "max_concurrent": 0}
    assert (await admin.patch("/v1/tenants/nobody", json={})).status_code == 404
    names = [tenant["name"] for tenant in (await admin.get("/v1/tenants")).json()["data"]]
    assert names == ["acme", "bolt", "carl", "default", "shared"]
    gone = {"name": "carl", "tenant_id": made["tenant_id"], "deleted": True}
    assert (await admin.delete("/v1/tenants/carl")).json() == gone
    for unknown in ("tenants/carl", "keys/carl"):
        refused = await admin.delete(f"/v1/{unknown}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")
    for unknown in ("acme/grants/carl/x", "acme/grants/bolt/nothing", "carl/grants/acme/latin"):
        assert (await admin.put(f"/v1/tenants/{unknown}")).status_code == 404
    refused = await admin.delete("/v1/tenants/acme")
    assert (refused.status_code, "delete them first" in refused.text) == (409, True)


@pytest.mark.parametrize("tenant", ["nobody", "x" * 300])
async def test_a_key_of_nobodys_is_404_however_long_the_name(admin: httpx.AsyncClient, tenant: str) -> None:
    assert (await admin.post("/v1/keys", json={"tenant": tenant})).status_code == 404


async def test_a_tenants_promises_are_made_and_changed(admin: httpx.AsyncClient, keys: Keys) -> None:
    both = {"first_token_s": 0.5, "time_per_token_s": 0.02}
    assert (await admin.put("/v1/tenants/carl", json={"slo": both})).json()["slo"] == both
    assert keys.registry.snapshot.tenant("carl").slo == Slo(0.5, 0.02)
    for patch, slo in (
        ({"max_adapters": 1}, both),
        ({"slo": {"first_token_s": 1}}, {**both, "first_token_s": 1.0}),
        ({"slo": {"time_per_token_s": None}}, {"first_token_s": 1.0, "time_per_token_s": None}),
        ({"slo": None}, None),
    ):
        assert (await admin.patch("/v1/tenants/carl", json=patch)).json()["slo"] == slo
    await admin.patch("/v1/tenants/carl", json={"slo": both})
    assert (await admin.put("/v1/tenants/carl", json={})).json()["slo"] is None


@pytest.mark.parametrize(
    "slo",
    [
        {},
        {"first_token_s": 0},
        {"time_per_token_s": -1},
        {"first_token_s": "1"},
        {"first_token_s": 1, "x": 1},
        1,
        False,
    ],
)
async def test_promises_that_are_none(admin: httpx.AsyncClient, slo: Any) -> None:
    for method in ("PUT", "PATCH"):
        refused = await admin.request(method, "/v1/tenants/acme", json={"slo": slo})
        assert refused.status_code == 422 and refused.json()["error"]["param"].startswith("slo")


@pytest.mark.parametrize("body", [{"max_concurrent": -1}, {"max_adapters": 2**60}, {"quota": 1}, [], None])
async def test_quotas_that_are_none(admin: httpx.AsyncClient, body: Any) -> None:
    assert (await admin.put("/v1/tenants/carl", json=body)).status_code == 422
    assert (await admin.patch("/v1/tenants/acme", json=body)).status_code == 422


async def test_a_suspended_tenant_is_refused_until_it_is_resumed(
    admin: httpx.AsyncClient, acme: httpx.AsyncClient, client: httpx.AsyncClient, keys: Keys
) -> None:
    own = {"origin": "http://frontend"}
    await client.post("/v1/login", json={"key": keys.acme}, headers=own)
    body = {"prompt": "4", "lora_id": "latin"}
    assert (await admin.patch("/v1/tenants/acme", json={"suspended": True})).json()["suspended"] is True
    for response in (
        await acme.post("/v1/generate", json=body),
        await client.get("/v1/models"),
        await client.post("/v1/login", json={"key": keys.acme}, headers=own),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (403, "tenant_suspended")
        assert "'acme' is suspended" in error["message"]
    assert (await admin.post("/v1/generate", json={"prompt": "4", "lora_id": "acme/latin"})).status_code == 200
    await admin.patch("/v1/tenants/acme", json={"suspended": False})
    assert (await acme.post("/v1/generate", json=body)).status_code == 200


async def test_an_administrators_key_ends_the_suspension_of_its_own_tenant(admin: httpx.AsyncClient) -> None:
    assert (await admin.patch("/v1/tenants/default", json={"suspended": True})).status_code == 200
    assert (await admin.patch("/v1/tenants/default", json={"suspended": False})).status_code == 200


async def test_a_key_is_shown_once(admin: httpx.AsyncClient, client_of: ClientOf) -> None:
    made = await admin.post("/v1/keys", json={"tenant": "acme", "name": "batch", "expires_in_s": 60})
    assert made.status_code == 201
    secret, key_id = made.json()["key"], made.json()["key_id"]
    client = client_of(secret)
    assert (await client.get("/v1/models")).status_code == 200
    listed = await admin.get("/v1/keys", params={"tenant": "acme"})
    assert secret not in listed.text and {"batch", ""} == {key["name"] for key in listed.json()["data"]}
    assert (await admin.delete(f"/v1/keys/{key_id}")).json() == {"key_id": key_id, "deleted": True}
    assert (await client.get("/v1/models")).status_code == 401


async def test_a_grant_lets_another_tenant_use_an_adapter(admin: httpx.AsyncClient, acme: httpx.AsyncClient) -> None:
    async def status() -> int:
        return (await acme.post("/v1/generate", json={"prompt": "4", "lora_id": "bolt/greek"})).status_code

    assert await status() == 404
    granted = await admin.put("/v1/tenants/acme/grants/bolt/greek")
    assert granted.json() == {"adapter": "bolt/greek", "tenant": "acme", "name": "greek", "shadows": []}
    assert await status() == 200
    assert (await admin.get("/v1/tenants/acme/grants")).json()["data"] == [granted.json()]
    assert (await admin.delete("/v1/tenants/acme/grants/bolt/greek")).status_code == 200
    assert await status() == 404
    assert (await admin.put("/v1/tenants/acme/grants/bolt/nothing")).status_code == 404


async def test_a_grant_says_by_which_name_it_is_used_and_what_that_hides(admin: httpx.AsyncClient, keys: Keys) -> None:
    bolt = keys.registry.snapshot.tenant("bolt").tenant_id
    for name in ("roman", "latin"):  # a shared one and one of acme's own
        ref = AdapterRef(name.encode().hex().ljust(64, "1"), f"/store/{name}", 100, {"q_proj": 8})
        await keys.registry.register(bolt, name, ref, by="the test")
        await admin.put(f"/v1/tenants/acme/grants/bolt/{name}")
    granted = (await admin.get("/v1/tenants/acme/grants")).json()["data"]
    assert {grant["adapter"]: (grant["name"], grant["shadows"]) for grant in granted} == {
        "bolt/latin": ("bolt/latin", []),
        "bolt/roman": ("roman", ["shared/roman"]),
    }


async def test_users_see_their_own_usage_and_administrators_all(
    admin: httpx.AsyncClient, acme: httpx.AsyncClient, client_of: ClientOf, keys: Keys, dependencies: AppDependencies
) -> None:
    delivered = 0
    for client, lora_id in ((acme, "latin"), (acme, None), (client_of(keys.bolt), "greek")):
        answer = (await client.post("/v1/generate", json={"prompt": "42", "lora_id": lora_id})).json()
        delivered += len(answer["token_ids"])
    await UsageWriter(dependencies.meter, dependencies.registry).flush()
    own = (await acme.get("/v1/usage")).json()["data"]
    assert [(row["tenant"], row["adapter"], row["version"]) for row in own] == [
        ("acme", None, None),
        ("acme", "acme/latin", 1),
    ]
    assert all((row["requests"], row["prompt_tokens"], row["gpu_seconds"]) == (1, 2, 0.25) for row in own)
    everybodys = (await admin.get("/v1/usage")).json()["data"]
    assert sum(row["completion_tokens"] for row in everybodys) == delivered
    assert (await admin.get("/v1/usage", params={"tenant": "acme"})).json()["data"] == own
    assert (await acme.get("/v1/usage", params={"tenant": "acme"})).json()["data"] == own
    assert (await acme.get("/v1/usage", params={"tenant": "bolt"})).status_code == 403
    assert (await acme.get("/v1/usage", params={"until": 5})).json()["data"] == []


async def test_usage_has_the_promises_that_were_kept_and_broken(
    admin: httpx.AsyncClient, acme: httpx.AsyncClient, dependencies: AppDependencies
) -> None:
    await admin.patch("/v1/tenants/acme", json={"slo": {"first_token_s": 60, "time_per_token_s": 1e-9}})
    await acme.post("/v1/generate", json={"prompt": "42"})
    await acme.post("/v1/generate", json={"prompt": "42", "slo": {"time_per_token_s": 60}})
    await acme.post("/v1/generate", json={"prompt": "42", "slo": {"first_token_s": 1e-9}, "max_tokens": 1})
    await UsageWriter(dependencies.meter, dependencies.registry).flush()
    (row,) = (await acme.get("/v1/usage")).json()["data"]
    assert (row["first_token_kept"], row["first_token_broken"]) == (2, 1)
    assert (row["time_per_token_kept"], row["time_per_token_broken"]) == (1, 1), "one token has no time per token"


async def test_the_audit_log_says_who(admin: httpx.AsyncClient, keys: Keys) -> None:
    await admin.put("/v1/tenants/carl", json={})
    newest = (await admin.get("/v1/audit", params={"limit": 1})).json()["data"][0]
    assert (newest["action"], newest["subject"]) == ("tenant.put", "carl")
    assert newest["by"] == f"default, key {keys.admin.split('-')[1]}"
    older = (await admin.get("/v1/audit", params={"before": newest["entry_id"]})).json()["data"]
    assert "carl" not in {entry["subject"] for entry in older} and len(older) > 3


async def test_users_see_of_the_cluster_only_adapters_that_they_may_use(
    admin: httpx.AsyncClient, acme: httpx.AsyncClient, client_of: ClientOf, keys: Keys, cluster: EchoCluster
) -> None:
    latin, greek = (
        keys.registry.snapshot.adapter(keys.registry.snapshot.tenant(tenant).tenant_id, name).ref.digest
        for tenant, name in (("acme", "latin"), ("bolt", "greek"))
    )
    cluster.resident_adapters = ("d1", latin, greek, "forgotten")
    seen = [
        (await client.get("/v1/cluster")).json()["gpus"][0]["resident_adapters"]
        for client in (admin, acme, client_of(keys.bolt))
    ]
    assert seen == [["d1", latin, greek, "forgotten"], ["d1", latin], ["d1", greek]]


async def test_a_browser_logs_in_and_out(client: httpx.AsyncClient, keys: Keys) -> None:
    own = {"origin": "http://frontend"}
    response = await client.post("/v1/login", json={"key": keys.acme}, headers=own)
    assert response.json() == {"tenant": "acme", "role": "user"}
    (cookie,) = SimpleCookie(response.headers["set-cookie"]).values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "strict", "/", "")
    assert keys.acme not in cookie.value
    models = (await client.get("/v1/models")).json()["data"]  # the client keeps cookies, as a browser does
    assert [model["id"] for model in models] == ["numbers", "roman", "latin"]
    await client.post("/v1/logout", headers=own)
    assert (await client.get("/v1/models")).status_code == 401


async def test_a_login_by_another_site_or_with_no_key(client: httpx.AsyncClient, keys: Keys) -> None:
    elsewhere = await client.post("/v1/login", json={"key": keys.acme}, headers={"origin": "http://evil.example"})
    wrong = await client.post("/v1/login", json={"key": "ps-nonsense"})
    assert [elsewhere.status_code, wrong.status_code] == [403, 401]
    assert "set-cookie" not in wrong.headers
