"""Clients that mean harm, or are merely broken. Each does its worst until it is cancelled, whatever it is answered."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

RECONNECT_S = 0.1
#: Longer than any test.
FOR_EVER_S = 3600.0

#: Given the websocket's URL.
Hostile = Callable[[str], Coroutine[Any, Any, None]]


async def stop_reading(url: str) -> None:
    """Asks for long and heavy answers, and takes none of them."""
    async with connect(url, proxy=None, compression=None, ping_interval=None, max_queue=1) as socket:
        for index in range(8):
            body = {"prompt": "42", "max_tokens": 512, "ignore_eos": True, "logprobs": 20}
            await socket.send(json.dumps({"op": "generate", "request_id": str(index), **body}))
        await asyncio.sleep(FOR_EVER_S)


async def flood_with_junk(url: str) -> None:
    """Sends large wrong frames as fast as they are taken, and never reads what they are answered."""
    frame = json.dumps({"op": "generate", "request_id": "junk", "prompt": "4" * 4_000, "no_such_field": 1})
    async with connect(url, proxy=None, compression=None, ping_interval=None, max_queue=1) as socket:
        while True:
            await socket.send(frame)


async def flood_with_cancelled_requests(url: str) -> None:
    """Starts requests and cancels them at once, up to a hundred a second, which costs the cluster real work."""
    async with connect(url, proxy=None, compression=None, ping_interval=None) as socket:
        while True:
            await socket.send(json.dumps({"op": "generate", "request_id": "r", "prompt": "42"}))
            await socket.send(json.dumps({"op": "cancel", "request_id": "r"}))
            while json.loads(await socket.recv())["finish_reason"] is None:
                pass
            await asyncio.sleep(0.01)


async def leave_and_come_back(url: str) -> None:
    """Opens a socket, asks, and breaks the connection without a word; again and again."""
    while True:
        async with connect(url, proxy=None, compression=None, ping_interval=None) as socket:
            await socket.send(json.dumps({"op": "generate", "request_id": "r", "prompt": "42", "max_tokens": 512}))
            await socket.recv()
            socket.transport.abort()


async def half_open(url: str) -> None:
    """Opens many connections and stops in the middle of their first request."""
    host, _, port = url.removeprefix("ws://").partition("/")[0].partition(":")
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            _, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n")
        await asyncio.sleep(FOR_EVER_S)


HOSTILES: tuple[Hostile, ...] = (
    *(stop_reading,) * 2,
    flood_with_junk,
    flood_with_cancelled_requests,
    leave_and_come_back,
    half_open,
)


@contextlib.asynccontextmanager
async def attacked(url: str) -> AsyncIterator[None]:
    """All of them at once, for as long as the context is open."""

    async def attack(hostile: Hostile) -> None:
        while True:
            with contextlib.suppress(OSError, WebSocketException):
                await hostile(url)
            await asyncio.sleep(RECONNECT_S)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attack(hostile)) for hostile in HOSTILES]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
