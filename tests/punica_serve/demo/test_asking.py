import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve

from punica_serve.demo.asking import Ask, rest, websocket
from punica_serve.errors import RequestFailed
from waits import DEADLINE_S


async def test_rest_sends_the_question_and_returns_the_text() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/generate"
        body = json.loads(request.content)
        assert (body["prompt"], body["lora_id"]) == ("42", "roman")
        return httpx.Response(200, json={"text": "XLII"})

    assert await _over_rest(handle)("roman", 42) == "XLII"


async def test_rest_names_the_question_that_failed() -> None:
    ask = _over_rest(lambda request: httpx.Response(404, text="no such adapter"))
    with pytest.raises(RequestFailed, match=r"roman, 42: HTTP 404: no such adapter"):
        await ask("roman", 42)


def _over_rest(handle: Callable[[httpx.Request], httpx.Response]) -> Ask:
    return rest(httpx.AsyncClient(base_url="http://api", transport=httpx.MockTransport(handle)))


async def _answer_in_reverse(connection: ServerConnection) -> None:
    """Takes two questions, then streams their answers, mixed and the second first."""
    second, first = [json.loads(await connection.recv()) for _ in range(2)][::-1]
    assert first["op"] == second["op"] == "generate"
    await _send(connection, second["request_id"], text=second["prompt"])
    await _send(connection, first["request_id"], text=first["prompt"])
    await _send(connection, "a stranger's", text="?", finish_reason="stop")
    await _send(connection, second["request_id"], text=f" {second['lora_id']}", finish_reason="stop")
    await _send(connection, first["request_id"], text=f" {first['lora_id']}", finish_reason="stop")
    await connection.wait_closed()


async def _send(connection: ServerConnection, request_id: str, **fields: Any) -> None:
    await connection.send(json.dumps({"request_id": request_id, "finish_reason": None, "error": None, **fields}))


async def _serve(
    handler: Callable[[ServerConnection], Awaitable[None]], client: Callable[[Ask], Awaitable[None]]
) -> None:
    async with serve(handler, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(DEADLINE_S), websocket(f"http://127.0.0.1:{port}") as ask:
            await client(ask)


async def test_websocket_sorts_the_frames_of_mixed_requests() -> None:
    async def client(ask: Ask) -> None:
        assert list(await asyncio.gather(ask("roman", 1), ask(None, 2))) == ["1 roman", "2 None"]

    await _serve(_answer_in_reverse, client)


async def test_websocket_error_frame_fails_its_own_request() -> None:
    async def refuse(connection: ServerConnection) -> None:
        question = json.loads(await connection.recv())
        await _send(connection, question["request_id"], finish_reason="error", error={"message": "cluster is full"})
        await connection.wait_closed()

    async def client(ask: Ask) -> None:
        with pytest.raises(RequestFailed, match="cluster is full"):
            await ask("roman", 1)

    await _serve(refuse, client)


async def test_a_closed_websocket_ends_the_wait() -> None:
    async def hang_up(connection: ServerConnection) -> None:
        await connection.recv()

    async def client(ask: Ask) -> None:
        await ask("roman", 1)

    with pytest.RaisesGroup(ConnectionError):
        await _serve(hang_up, client)
