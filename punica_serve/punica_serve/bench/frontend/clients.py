"""A process of clients: `python -m punica_serve.bench.frontend.clients API PORT SOCKETS REQUESTS`, then a body's load.

Implements the APIs by hand: it sends requests, discards what it receives but for the ends of answers, and then asks
again, to take little of the machine that the frontend is measured on. It ends when the frontend does.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

from punica_serve.adapters.dummy import dummy_name

_HANDSHAKE = (
    b"GET /v1/generate/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_READ_BYTES = 1 << 20
_RETRY_S = 0.1

#: The paths of server-sent events.
_PATHS = {"http": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/v1/generate"}

#: A token id of the demo with a text.
_TOKEN_ID = 20
#: The end of an answer: in its last frame, and after its last chunk.
_LAST_FRAME, _LAST_CHUNK = b'"finish_reason":"length"', b"\r\n0\r\n\r\n"


def _masked(text: bytes) -> bytes:
    """A client's websocket message of 126 to 65,535 bytes (RFC 6455, section 5.2), masked with zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


def _ask(number: int, fields: dict[str, Any]) -> bytes:
    frame = {"op": "generate", "request_id": str(number), **fields}
    return _masked(json.dumps(frame).ljust(126).encode())


def _bodies(api: str, num_prompt: int, num_answer: int, num_adapters: int) -> list[dict[str, Any]]:
    """A request's fields for each adapter, or for the base model if there are none."""
    prompt = _prompt(api, num_prompt)
    sampling = {"max_tokens": num_answer, "ignore_eos": True, "temperature": 0.0}
    field = "model" if api in ("http", "chat") else "lora_id"
    names = [{field: dummy_name(number)} for number in range(num_adapters)] or [{}]
    return [{**prompt, **sampling, **name} for name in names]


def _prompt(api: str, num_prompt: int) -> dict[str, Any]:
    ids = [_TOKEN_ID] * num_prompt
    match api:
        case "http":
            return {"prompt": ids}
        case "chat":
            return {"messages": [{"role": "user", "content": "1" * num_prompt}]}
        case _:
            return {"input_ids": ids}


def _post(api: str, fields: dict[str, Any]) -> bytes:
    body = json.dumps({**fields, "stream": True}).encode()
    head = f"POST {_PATHS[api]} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:  # the frontend has not started yet; our parent has a deadline
            await asyncio.sleep(_RETRY_S)


async def _hold_socket(port: int, num_requests: int, bodies: Iterator[dict[str, Any]]) -> None:
    """Begins as many requests as end, under new ids."""
    reader, writer = await _connection(port)
    writer.write(_HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    numbers, num_free = count(), num_requests
    kept = b""
    while True:
        for _ in range(num_free):
            writer.write(_ask(next(numbers), next(bodies)))
        if not (data := await reader.read(_READ_BYTES)):
            return
        kept += data
        num_free = kept.count(_LAST_FRAME)
        # An end may be divided, but none is counted twice.
        kept = kept[kept.rfind(_LAST_FRAME) + len(_LAST_FRAME) :] if num_free else kept[-len(_LAST_FRAME) :]


async def _hold_stream(port: int, posts: Iterator[bytes]) -> None:
    reader, writer = await _connection(port)
    writer.write(next(posts))
    end = b""
    while data := await reader.read(_READ_BYTES):
        end = (end + data)[-len(_LAST_CHUNK) :]
        if end == _LAST_CHUNK:
            end = b""
            writer.write(next(posts))


async def _run(api: str, port: int, num_sockets: int, num_requests: int, *load: int) -> None:
    """A websocket has all its requests; each stream of server-sent events has a connection of its own.

    Requests take the adapters in turn. ``load`` is as in ``_bodies``.
    """
    bodies = _bodies(api, *load)
    if api == "websocket":
        in_turn = cycle(bodies)
        await asyncio.gather(*(_hold_socket(port, num_requests, in_turn) for _ in range(num_sockets)))
    else:
        posts = cycle([_post(api, fields) for fields in bodies])
        await asyncio.gather(*(_hold_stream(port, posts) for _ in range(num_sockets * num_requests)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], *map(int, sys.argv[2:])))
