"""`frontend.unknown_fields: warn`: answered without what is unknown, which the answer tells."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from punica_serve.config.cluster import ClusterConfig
from unknown_fields import ADAPTERS, REFUSED
from waits import DEADLINE_S

MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "4"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/tokenize": {"prompt": "4"},
    "/detokenize": {"tokens": [20]},
    "/generate": {"inputs": "4"},
    "/generate_stream": {"inputs": "4"},
    "/": {"inputs": "4", "stream": True},
}


@pytest.fixture
def config(config: ClusterConfig) -> ClusterConfig:
    frontend = config.frontend.model_copy(update={"unknown_fields": "warn"})
    return config.model_copy(update={"frontend": frontend})


@pytest.mark.parametrize("route", ROUTES)
async def test_the_answer_tells_what_it_ignores(client: httpx.AsyncClient, route: str) -> None:
    for name, value in REFUSED.items():
        response = await client.post(route, json=ROUTES[route] | {name: value})
        assert response.status_code == 200, response.text
        told = "..." if name in ("odd\r\né", "x" * 999) else name
        assert response.headers["x-punica-ignored-fields"] == told
    response = await client.post(route, json=ROUTES[route] | {"user": "u", "suffix": "", "tools": []})
    assert response.status_code == 200 and "x-punica-ignored-fields" not in response.headers


@pytest.mark.parametrize("route", ROUTES)
async def test_an_adapter_is_refused_all_the_same(client: httpx.AsyncClient, route: str) -> None:
    for name in ADAPTERS:
        response = await client.post(route, json={**ROUTES[route], "tools": [{}], name: "roman"})
        assert response.status_code in (400, 422) and f"`{name}` is not supported here; give" in response.text


async def test_streams_and_objects_in_the_body_too(client: httpx.AsyncClient) -> None:
    body = {"messages": [MESSAGES[0] | {"tool_call_id": "1"}] * 2, "stream": True, "stream_options": {"made_up": 1}}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-punica-ignored-fields"] == "stream_options.made_up, messages.tool_call_id"
    metrics = (await client.get("/metrics")).text
    assert 'punica_unknown_fields_total{field="messages.tool_call_id",outcome="ignored"} 1' in metrics


async def test_the_first_frame_of_a_websocket_tells_it(address: str) -> None:
    request = {"op": "generate", "request_id": "a", "format": "openai", "prompt": "42", "tools": [{}], "suffix": "x"}
    frames: list[dict[str, Any]] = []
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        while not (frames and frames[-1]["done"]):
            frames.append(json.loads(await socket.recv()))
    assert len(frames) > 1 and frames[0]["ignored_fields"] == ["tools", "suffix"]
    assert not any("ignored_fields" in frame for frame in frames[1:])
