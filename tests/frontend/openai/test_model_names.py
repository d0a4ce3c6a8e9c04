"""Values of `model` other than the name of a model."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import AdapterRef
from punica_serve.registry.names import SHARED_TENANT
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.shared_adapters import SharedAdapters
from waits import DEADLINE_S

CHAT = [{"role": "user", "content": "4"}]
#: A route -> a body for it, but for the model.
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "4"},
    "/v1/chat/completions": {"messages": CHAT},
}


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("name", ["tgi", "dummy"])
async def test_placeholders_of_tgis_clients_mean_the_base_model(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str, name: str
) -> None:
    answer = (await client.post(route, json={"model": name, **BODIES[route]})).json()
    assert answer["model"] == "numbers" and cluster.digests == [None]


async def test_it_does_where_text_becomes_tokens(client: httpx.AsyncClient) -> None:
    answer = await client.post("/tokenize", json={"model": "tgi", "messages": CHAT})
    assert answer.json()["count"] == len("u:4|a:")


async def test_it_does_on_a_websocket(address: str) -> None:
    request = {"op": "generate", "request_id": "a", "format": "openai", "model": "tgi", "prompt": "4"}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        frame = json.loads(await socket.recv())
    assert frame["error"] is None and frame["chunk"]["model"] == "numbers"


async def test_other_names_are_those_of_models(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for name in ("TGI", "numbers:tgi", "dummy2"):
        answer = await client.post("/v1/chat/completions", json={"model": name, "messages": CHAT})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert (await client.get("/v1/models/tgi")).status_code == 404
    assert not cluster.requests


async def test_the_native_api_and_tgis_own_route_have_no_such_name(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/generate", json={"prompt": "4", "lora_id": "tgi"})).status_code == 404
    body = {"inputs": "4", "parameters": {"adapter_id": "tgi"}}
    assert (await client.post("/generate", json=body)).status_code == 404


class TestAdaptersOfThatName:
    @pytest.fixture
    def shared(self) -> SharedAdapters:
        ref = AdapterRef("d1", "/adapters/tgi", 100, {"q_proj": 8})
        adapter = AdapterVersion(
            SHARED_TENANT, SHARED_TENANT, "tgi", 1, ref, ref.uri, None, None, pinned=False, created_s=0.0
        )
        return SharedAdapters({"tgi": adapter}, {"dummy": AdapterRejected("no", param="r")})

    async def test_an_adapter_answers(self, client: httpx.AsyncClient, cluster: EchoCluster) -> None:
        answer = (await client.post("/v1/completions", json={"model": "tgi", "prompt": "4"})).json()
        assert answer["model"] == "tgi" and cluster.digests == ["d1"]

    async def test_one_that_is_not_served_is_refused(self, client: httpx.AsyncClient, cluster: EchoCluster) -> None:
        answer = await client.post("/v1/completions", json={"model": "dummy", "prompt": "4"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
        assert not cluster.requests


_TWICE = (
    '{"model": "numbers", "model": "nobody", "op": "generate", "format": "openai", "request_id": "a", "prompt": "4"}'
)


async def test_of_two_models_the_last_counts_over_http(client: httpx.AsyncClient) -> None:
    """Where a proxy read the first, the caller still gets no other model than the frontend checks."""
    body = _TWICE.replace('"op": "generate", "format": "openai", "request_id": "a", ', "")
    headers = {"content-type": "application/json"}
    answer = await client.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == 404 and "'nobody'" in answer.json()["error"]["message"]


async def test_of_two_models_the_last_counts_on_a_websocket(address: str) -> None:
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(_TWICE)
        frame = json.loads(await socket.recv())
    assert "'nobody'" in frame["error"]["message"]
