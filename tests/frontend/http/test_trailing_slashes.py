"""A path with a slash at its end: the same answer as without, from every route."""

import socket

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect

from punica_frontend.http.startup_server import _refusing
from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import DEADLINE_S


def told(answer: httpx.Response) -> tuple[int, str | None, str | None]:
    """The parts of an answer that are the same for every request."""
    return answer.status_code, answer.headers.get("allow"), answer.headers.get("content-type")


async def test_every_route_answers_as_without_it(app: FastAPI, client: httpx.AsyncClient) -> None:
    paths = [*app.openapi()["paths"], "/docs", "/dashboard", "/dashboard/main.js", "/openapi.json", "/nowhere"]
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            expected = told(await client.request(method, path))
            if path != "/":
                assert told(await client.request(method, f"{path}/")) == expected, (method, path)
                assert expected[0] not in (301, 302, 307, 308), (method, path)


async def test_a_body_is_read(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/generate/", json={"prompt": "42"})
    assert (answer.status_code, answer.json()["text"]) == (200, "42")


async def test_an_adapters_name_ends_before_it(client: httpx.AsyncClient) -> None:
    for path in ("/v1/adapters/roman/", "/v1/adapters/shared/roman/"):
        assert (await client.get(path)).json()["name"] == "roman"
    assert (await client.get("/v1/adapters/")).json()["object"] == "list"
    assert (await client.get("/v1/models/numbers/")).json()["id"] == "numbers"


async def test_one_slash_is_left_out_and_no_more(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health//")
    assert (answer.status_code, answer.headers.get("location")) == (404, None)
    assert (await client.get("/")).headers["location"] == "/dashboard"


@pytest.mark.parametrize("path", ["/v1/generate/stream/", "/v1/cluster/watch/", "/v1/cluster/watch/?per_s=2"])
async def test_a_websocket_is_opened(server: EmbeddedServer, address: str, path: str) -> None:
    async with connect(f"ws://{address}{path}", proxy=None):
        pass


async def test_no_redirect_names_the_host_that_a_client_sent(client: httpx.AsyncClient) -> None:
    foreign = {"host": "evil.example"}
    for path in ("/", "/docs/", "/dashboard/", "/v1/models/", "//evil.example/", "//evil.example"):
        assert "evil" not in (await client.get(path, headers=foreign)).headers.get("location", "")


async def test_before_the_registry_is_there(listener: socket.socket) -> None:
    async with _refusing(listener, 10), httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        health, ping, ready = [await client.get(f"{url}{path}") for path in ("/health/", "/ping/", "/ready/")]
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert (ping.status_code, ping.content, ready.status_code) == (200, b"", 503)
