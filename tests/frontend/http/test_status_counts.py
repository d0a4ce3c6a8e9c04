"""Each answer is counted once, under few labels."""

from collections import Counter

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from echo_cluster import EchoCluster
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http.status_counts import RouteTemplates, StatusCounts
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.metrics.metrics import AnswerKind


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/health", ("/health", "GET", "2xx")),
        ("HEAD", "/v1/adapters/roman/", ("/v1/adapters/{name}", "HEAD", "2xx")),
        ("GET", "/v1/adapters/shared/roman", ("/v1/adapters/{name}", "GET", "2xx")),
        ("GET", "/v1/adapters/nope", ("/v1/adapters/{name}", "GET", "4xx")),
        ("POST", "/v1/adapters/roman/prefetch", ("/v1/adapters/{name}/prefetch", "POST", "2xx")),
        ("GET", "/", ("/", "GET", "3xx")),
        ("PUT", "/v1/generate", ("/v1/generate", "PUT", "4xx")),
        ("GET", "/nowhere/42", ("none", "GET", "4xx")),
        ("BREW", "/health", ("/health", "other", "4xx")),
    ],
)
async def test_an_answer_is_counted_under_its_route(
    client: httpx.AsyncClient, dependencies: AppDependencies, method: str, path: str, expected: tuple[str, str, str]
) -> None:
    await client.request(method, path)
    assert dependencies.metrics.num_answers == {AnswerKind(*expected): 1}


@pytest.mark.parametrize("auth_mode", ["keys"])
async def test_a_request_without_a_key_has_its_route_too(
    client: httpx.AsyncClient, dependencies: AppDependencies
) -> None:
    assert (await client.get("/v1/adapters/roman")).status_code == 401
    assert dependencies.metrics.num_answers == {AnswerKind("/v1/adapters/{name}", "GET", "4xx"): 1}


async def test_an_internal_error_is_counted(
    client: httpx.AsyncClient, cluster: EchoCluster, dependencies: AppDependencies, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(cluster, "cluster", fail)
    await client.get("/v1/cluster")
    assert dependencies.metrics.num_answers == {AnswerKind("/v1/cluster", "GET", "5xx"): 1}


async def test_a_stream_of_events_is_one_answer(client: httpx.AsyncClient, dependencies: AppDependencies) -> None:
    await client.post("/v1/generate", json={"prompt": "1234567", "stream": True})
    assert dependencies.metrics.num_answers == {AnswerKind("/v1/generate", "POST", "2xx"): 1}


async def test_a_websocket_counts_at_its_handshake(
    server: EmbeddedServer, address: str, dependencies: AppDependencies
) -> None:
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        await socket.send('{"op": "generate", "request_id": "1", "prompt": "42"}')
        await socket.recv()
    with pytest.raises(InvalidStatus):
        async with connect(f"ws://{address}/nowhere", proxy=None):
            pass
    assert dependencies.metrics.num_answers == {
        AnswerKind("/v1/generate/stream", "GET", "1xx"): 1,
        AnswerKind("none", "GET", "4xx"): 1,
    }


async def test_a_websocket_that_is_closed_unopened_was_refused() -> None:
    async def close(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close"})

    async def ignore(_: object) -> None:
        pass

    async def never() -> dict[str, str]:
        raise AssertionError

    num_answers = Counter[AnswerKind]()
    counted = StatusCounts(close, RouteTemplates([]), num_answers)
    await counted({"type": "websocket", "path": "/x"}, never, ignore)
    assert num_answers == {AnswerKind("none", "GET", "4xx"): 1}


async def test_all_documented_routes_are_known(
    app: FastAPI, client: httpx.AsyncClient, dependencies: AppDependencies
) -> None:
    paths = [*app.openapi()["paths"], "/docs", "/dashboard", "/dashboard/{name}", "/openapi.json"]
    for path in paths:
        await client.request("OPTIONS", path.replace("{", "").replace("}", ""))
    assert {kind.handler for kind in dependencies.metrics.num_answers} == set(paths)
