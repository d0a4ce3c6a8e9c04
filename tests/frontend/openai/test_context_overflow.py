"""Requests that exceed the context get one error code over every API."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_serve.protocol import Limits
from waits import DEADLINE_S

#: As many as the context of these tests holds, so that none is left for the answer.
LONG = "4" * 64
CHAT = [{"role": "user", "content": "4"}]

#: A route -> a body with too long a prompt, and one that asks for too long an answer; with the field of each.
BODIES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/generate", {"prompt": LONG}, "prompt"),
    ("/v1/generate", {"input_ids": [20] * 64}, "input_ids"),
    ("/v1/generate", {"prompt": "4", "max_tokens": 64}, "max_tokens"),
    ("/v1/completions", {"prompt": LONG}, "prompt"),
    ("/v1/completions", {"prompt": ["4", LONG]}, "prompt.1"),
    ("/v1/completions", {"prompt": "4", "max_tokens": 64, "stream": True}, "max_tokens"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "stream": True}, "messages"),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 64}, "max_tokens"),
    ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 64}, "max_completion_tokens"),
]


@pytest.mark.parametrize(("route", "body", "param"), BODIES)
async def test_over_http(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str, body: dict[str, Any], param: str
) -> None:
    answer = await client.post(route, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"], error["param"]) == (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        param,
    )
    # LiteLLM knows an overflow by these words alone.
    assert f"`{param}" in error["message"] and "this model's maximum context length is 64 tokens" in error["message"]
    assert not cluster.requests


@pytest.mark.parametrize("shape", ["native", "openai"])
@pytest.mark.parametrize(("fields", "param"), [({"prompt": LONG}, "prompt"), ({"max_tokens": 64}, "max_tokens")])
async def test_over_a_websocket(address: str, shape: str, fields: dict[str, Any], param: str) -> None:
    request = {"op": "generate", "request_id": "a", "format": shape, "prompt": "4", **fields}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        error = json.loads(await socket.recv())["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "context_length_exceeded", param)


async def test_the_largest_kvcache_limits_the_context(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.limits = Limits(num_gpus=1, max_request_tokens=32)
    error = (await client.post("/v1/completions", json={"prompt": "4", "max_tokens": 32})).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "32 tokens here, as much as the cluster's largest KvCache holds" in error["message"]


async def test_in_tgis_shape_it_is_a_validation_error(client: httpx.AsyncClient) -> None:
    for body, param in (
        ({"inputs": LONG}, "inputs"),
        ({"inputs": "4", "parameters": {"max_new_tokens": 64}}, "parameters.max_new_tokens"),
    ):
        answer = await client.post("/generate", json=body)
        assert answer.status_code == 422 and answer.json()["error_type"] == "validation"
        assert f"`{param}`" in answer.json()["error"]


async def test_it_is_counted_by_its_code(client: httpx.AsyncClient) -> None:
    await client.post("/v1/generate", json={"prompt": LONG})
    assert 'punica_requests_failed_total{code="context_length_exceeded"} 1' in (await client.get("/metrics")).text
