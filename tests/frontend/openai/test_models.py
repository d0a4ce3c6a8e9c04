"""GET /v1/models and /v1/models/{model}, and which names lead where for whom."""

from dataclasses import replace
from pathlib import Path

import httpx
import openai
import pytest
from openai.types import Model

from echo_cluster import EchoCluster
from punica_frontend.tenancy.authenticator import AuthMode
from punica_serve.config.registry_section import sqlite_url
from punica_serve.protocol import AdapterRef, TenantQuota
from punica_serve.registry.records import ServedBase
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters


@pytest.fixture
def auth_mode() -> AuthMode:
    return "keys"


@pytest.fixture
def shared(shared: SharedAdapters) -> SharedAdapters:
    return replace(shared, base=ServedBase("numbers", "its shape"))


@pytest.fixture
async def secrets(registry: Registry) -> dict[str, str]:
    """Keys of users of two tenants, and of an administrator. Both tenants have an adapter called `tone`."""
    secrets = {}
    for tenant in ("acme", "rival"):
        tenant_id = (await registry.put_tenant(tenant, TenantQuota(), by="the test")).tenant_id
        ref = AdapterRef(f"digest-{tenant}", f"/secret/{tenant}", 100, {"q_proj": 8})
        await registry.register(tenant_id, "tone", ref, source_uri="s3://bucket/tone", by="the test")
        _, secrets[tenant] = await registry.make_key(tenant, "user", "", by="the test")
    _, secrets["admin"] = await registry.make_key("default", "admin", "", by="the test")
    return secrets


async def get(client: httpx.AsyncClient, path: str, secret: str) -> httpx.Response:
    return await client.get(path, headers={"Authorization": f"Bearer {secret}"})


async def ids(client: httpx.AsyncClient, secret: str) -> list[str]:
    listing = (await get(client, "/v1/models", secret)).json()
    assert listing["object"] == "list"
    return [card["id"] for card in listing["data"]]


async def test_everybody_sees_their_own(client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
    assert await ids(client, secrets["acme"]) == ["numbers", "roman", "tone"]
    assert await ids(client, secrets["admin"]) == ["numbers", "roman", "acme/tone", "rival/tone"]


async def test_granted_adapters_are_listed_under_the_callers_name_for_them(
    client: httpx.AsyncClient, secrets: dict[str, str], registry: Registry
) -> None:
    await registry.grant("rival", "tone", "acme", by="the test")
    assert await ids(client, secrets["acme"]) == ["numbers", "roman", "tone", "rival/tone"]


async def test_cards(client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
    base, roman, tone = (await get(client, "/v1/models", secrets["acme"])).json()["data"]
    assert base.pop("created") > 0 and tone.pop("created") > 0 and roman.pop("created") == 0
    common = {"object": "model", "max_model_len": 64, "permission": [], "root": "numbers"}
    assert base == {"id": "numbers", "parent": None, "owned_by": "punica-serve", **common}
    assert roman == {"id": "roman", "parent": "numbers", "owned_by": "shared", **common}
    assert tone == {"id": "tone", "parent": "numbers", "owned_by": "acme", **common}


async def test_no_card_says_where_files_lie(client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
    text = (await get(client, "/v1/models", secrets["admin"])).text
    assert not [word for word in ("/secret", "/adapters", "/models/", "s3:", "digest") if word in text]


IDS = {
    "numbers": "numbers",
    "tone": "tone",
    "numbers:tone": "tone",
    "acme/tone": "tone",
    "shared/roman": "roman",
    "numbers:acme/tone": "tone",
}


async def test_one_card(client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
    for name, model_id in IDS.items():
        card = (await get(client, f"/v1/models/{name}", secrets["acme"])).json()
        Model.model_validate(card, strict=True)
        assert card["id"] == model_id


async def test_somebody_elses_is_as_if_it_were_not_there(client: httpx.AsyncClient, secrets: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {secrets['acme']}"}
    for name in ("rival/tone", "rival/unheard-of", "unheard-of"):
        one = await client.get(f"/v1/models/{name}", headers=headers)
        used = await client.post("/v1/completions", json={"model": name, "prompt": "4"}, headers=headers)
        tokenized = await client.post("/tokenize", json={"model": name, "prompt": "4"}, headers=headers)
        for response in (one, used, tokenized):
            assert response.status_code == 404
            error = response.json()["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
            assert error["message"] == f"the model {name!r} does not exist; GET /v1/models lists the models"


async def test_each_tenant_gets_its_own(
    client: httpx.AsyncClient, secrets: dict[str, str], cluster: EchoCluster
) -> None:
    for tenant in ("acme", "rival"):
        headers = {"Authorization": f"Bearer {secrets[tenant]}"}
        await client.post("/v1/completions", json={"model": "tone", "prompt": "4"}, headers=headers)
        body = {"inputs": "4", "parameters": {"adapter_id": "tone"}}
        await client.post("/generate", json=body, headers=headers)
    assert cluster.digests == ["digest-acme"] * 2 + ["digest-rival"] * 2
    assert {request.tenant for request in cluster.requests} == {"acme", "rival"}


async def test_the_official_client(official: openai.AsyncOpenAI, secrets: dict[str, str]) -> None:
    client = official.with_options(api_key=secrets["acme"])
    assert [model.id async for model in client.models.list()] == ["numbers", "roman", "tone"]
    assert (await client.models.retrieve("acme/tone")).owned_by == "acme"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("rival/tone")
    with pytest.raises(openai.AuthenticationError):
        await official.models.list()


async def test_an_adapter_of_another_services_base_model_is_not_offered_and_refused_with_both_names(
    client: httpx.AsyncClient, secrets: dict[str, str], registry: Registry, tmp_path: Path
) -> None:
    """Two services share the registry."""
    base = ServedBase("letters", "another shape")
    other = await Registry.open(sqlite_url(tmp_path / "registry.db"), shared=SharedAdapters(base=base), deadline_s=60.0)
    acme = registry.snapshot.tenant("acme").tenant_id
    await other.register(acme, "theirs", AdapterRef("theirs", "/theirs", 1, {"q_proj": 8}), by="the test")
    await other.close()
    await registry.refresh()
    assert await ids(client, secrets["acme"]) == ["numbers", "roman", "tone"]
    headers = {"Authorization": f"Bearer {secrets['acme']}"}
    answers = [
        await client.get("/v1/models/theirs", headers=headers),
        await client.post("/v1/completions", json={"model": "theirs", "prompt": "1"}, headers=headers),
        await client.post("/v1/generate", json={"lora_id": "theirs", "prompt": "1"}, headers=headers),
        await client.post("/v1/adapters/theirs/prefetch", json={}, headers=headers),
    ]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert "the base model 'letters', and this service's is 'numbers'" in answer.json()["error"]["message"]
    cards = (await client.get("/v1/adapters", headers=headers)).json()["data"]
    told = {card["name"]: (card["registered_for"], card["served"]) for card in cards}
    assert told == {"roman": (None, True), "tone": ("numbers", True), "theirs": ("letters", False)}
