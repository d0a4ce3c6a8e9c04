"""Usage with cached tokens, as OpenAI's `prompt_tokens_details` tells them, and vLLM's `cache_salt`."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_frontend.dependencies import AppDependencies
from waits import DEADLINE_S

MESSAGES = [{"role": "user", "content": "42"}]
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/generate", {"prompt": "4242"}),
    ("/v1/completions", {"prompt": "4242"}),
    ("/v1/completions", {"prompt": "4242", "echo": True, "n": 2}),
    ("/v1/chat/completions", {"messages": MESSAGES, "n": 3}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_usage_tells_cached_tokens_where_gpus_share_pages(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str, body: dict[str, Any]
) -> None:
    usage = (await client.post(path, json=body)).json()["usage"]
    assert "prompt_tokens_details" not in usage
    for cluster.num_cached_tokens in (0, 3):
        told = (await client.post(path, json=body)).json()["usage"]
        assert told.pop("prompt_tokens_details") == {"cached_tokens": cluster.num_cached_tokens}
        assert told == usage


async def test_they_are_counted_for_the_tenant_and_its_metrics(
    client: httpx.AsyncClient, cluster: EchoCluster, dependencies: AppDependencies
) -> None:
    cluster.num_cached_tokens = 3
    await client.post("/v1/completions", json={"prompt": "4242", "n": 2})
    (row,) = dependencies.meter.take()
    assert (row.num_prompt_tokens, row.num_cached_tokens) == (4, 3)
    text = (await client.get("/metrics")).text
    assert 'punica_tenant_cached_tokens_total{tenant="default"} 6' in text


async def test_streams_tell_them_with_their_usage(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.num_cached_tokens = 2
    body = {"prompt": ["42", "123"], "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    response = await client.post("/v1/completions", json=body)
    *_, last, _done = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert json.loads(last)["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_so_do_websockets(address: str, cluster: EchoCluster) -> None:
    cluster.num_cached_tokens = 2
    request = {"op": "generate", "request_id": "a", "format": "openai", "prompt": "4242", "max_tokens": 3}
    frames: list[dict[str, Any]] = [{"done": False}]
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps({**request, "stream_options": {"include_usage": True}}))
        while not frames[-1]["done"]:
            frames.append(json.loads(await socket.recv()))
    assert frames[-1]["chunk"]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


@pytest.mark.parametrize(("path", "body"), ROUTES)
async def test_a_salt_goes_with_the_request(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str, body: dict[str, Any]
) -> None:
    await client.post(path, json={**body, "cache_salt": "user-7"})
    assert {request.cache_salt for request in cluster.requests} == {"user-7"}
    response = await client.post(path, json={**body, "cache_salt": "s" * 300})
    assert response.status_code in (400, 422) and response.json()["error"]["param"] == "cache_salt"
    assert "at most 256 characters, not 300" in response.json()["error"]["message"]
