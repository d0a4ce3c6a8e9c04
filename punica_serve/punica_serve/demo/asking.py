"""Two ways to send questions about integers to a running API: separate HTTP requests, or one shared websocket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection, connect

from punica_serve.errors import RequestFailed

#: Takes a lora_id (None for the base) and an integer; returns the whole answer. Raises RequestFailed.
Ask = Callable[[str | None, int], Awaitable[str]]

#: Deadline of one answer.
TIMEOUT_S = 120.0
_MAX_TOKENS = 64


def _question(lora_id: str | None, n: int) -> dict[str, Any]:
    return {"prompt": str(n), "lora_id": lora_id, "max_tokens": _MAX_TOKENS, "temperature": 0.0}


def rest(client: httpx.AsyncClient) -> Ask:
    """One ``POST /v1/generate`` per question."""

    async def ask(lora_id: str | None, n: int) -> str:
        response = await client.post("/v1/generate", json=_question(lora_id, n))
        if response.status_code != httpx.codes.OK:
            raise RequestFailed(f"{lora_id or 'base'}, {n}: HTTP {response.status_code}: {response.text[:200]}")
        return str(response.json()["text"])

    return ask


@asynccontextmanager
async def websocket(url: str) -> AsyncIterator[Ask]:
    """All questions on one socket at ``url``, the http address of the API."""
    address = "ws" + url.removeprefix("http").rstrip("/") + "/v1/generate/stream"
    async with connect(address, proxy=None) as connection, asyncio.TaskGroup() as group:
        stream = Stream(connection)
        reader = group.create_task(stream.read())
        yield stream.ask
        reader.cancel()


class Stream:
    """Assigns the frames on one socket to their requests."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._parts: dict[str, list[str]] = {}
        self._answers: dict[str, asyncio.Future[str]] = {}

    async def ask(self, lora_id: str | None, n: int) -> str:
        request_id = uuid4().hex
        self._parts[request_id] = []
        self._answers[request_id] = asyncio.get_running_loop().create_future()
        frame = {"op": "generate", "request_id": request_id, **_question(lora_id, n)}
        try:
            await self._connection.send(json.dumps(frame))
            async with asyncio.timeout(TIMEOUT_S):
                return await self._answers[request_id]
        finally:
            del self._parts[request_id], self._answers[request_id]

    async def read(self) -> None:
        """Runs until cancelled; raises ConnectionError when the server closes the socket."""
        async for frame in self._connection:
            self.take(json.loads(frame))
        raise ConnectionError("the server closed the websocket")

    def take(self, frame: dict[str, Any]) -> None:
        """Adds a frame's text to its request, and completes the request on its last frame or its error."""
        answer = self._answers.get(frame["request_id"])
        if answer is None or answer.done():
            return
        parts = self._parts[frame["request_id"]]
        parts.append(frame.get("text") or "")
        if frame.get("error"):
            answer.set_exception(RequestFailed(str(frame["error"])))
        elif frame.get("finish_reason"):
            answer.set_result("".join(parts))
