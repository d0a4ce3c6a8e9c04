"""A process of clients: `python -m punica_serve.bench.frontend.clients API PORT SOCKETS REQUESTS PROMPT ANSWER`.

Implements the APIs by hand: it sends requests, discards what it receives but for the ends of answers, and then asks
again, to take little of the machine that the frontend is measured on. It ends when the frontend does.
"""

import asyncio
import json
import sys
from typing import Any

_HANDSHAKE = (
    b"GET /v1/generate/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_READ_BYTES = 1 << 20
_RETRY_S = 0.1

#: A token id of the demo with a text.
_TOKEN_ID = 20
#: The end of an answer: in its last frame, and after its last chunk.
_LAST_FRAME, _LAST_CHUNK = b'"finish_reason":"length"', b"\r\n0\r\n\r\n"


def _masked(text: bytes) -> bytes:
    """A client's websocket message of 126 to 65,535 bytes (RFC 6455, section 5.2), masked with zeros."""
    return b"\x81\xfe" + len(text).to_bytes(2) + bytes(4) + text


def _ask(number: int, sampling: dict[str, Any], num_prompt: int) -> bytes:
    frame = {"op": "generate", "request_id": str(number), "input_ids": [_TOKEN_ID] * num_prompt, **sampling}
    return _masked(json.dumps(frame).ljust(126).encode())


def _route(api: str, num_prompt: int) -> tuple[str, dict[str, Any]]:
    """The path of an API of server-sent events, and the fields of its prompt."""
    ids = [_TOKEN_ID] * num_prompt
    match api:
        case "http":
            return "/v1/completions", {"prompt": ids}
        case "chat":
            return "/v1/chat/completions", {"messages": [{"role": "user", "content": "1" * num_prompt}]}
        case "generate":
            return "/v1/generate", {"input_ids": ids}
        case _:
            raise ValueError(f"no API {api!r}")


def _post(api: str, sampling: dict[str, Any], num_prompt: int) -> bytes:
    path, prompt = _route(api, num_prompt)
    body = json.dumps({**prompt, "stream": True, **sampling}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:  # the frontend has not started yet; our parent has a deadline
            await asyncio.sleep(_RETRY_S)


async def _hold_socket(port: int, num_requests: int, sampling: dict[str, Any], num_prompt: int) -> None:
    """Begins as many requests as end, under new ids."""
    reader, writer = await _connection(port)
    writer.write(_HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    number, num_free = 0, num_requests
    kept = b""
    while True:
        for _ in range(num_free):
            writer.write(_ask(number, sampling, num_prompt))
            number += 1
        if not (data := await reader.read(_READ_BYTES)):
            return
        kept += data
        num_free = kept.count(_LAST_FRAME)
        # An end may be divided, but none is counted twice.
        kept = kept[kept.rfind(_LAST_FRAME) + len(_LAST_FRAME) :] if num_free else kept[-len(_LAST_FRAME) :]


async def _hold_stream(port: int, post: bytes) -> None:
    reader, writer = await _connection(port)
    writer.write(post)
    end = b""
    while data := await reader.read(_READ_BYTES):
        end = (end + data)[-len(_LAST_CHUNK) :]
        if end == _LAST_CHUNK:
            end = b""
            writer.write(post)


async def _run(api: str, port: int, num_sockets: int, num_requests: int, num_prompt: int, num_answer: int) -> None:
    """A websocket has all its requests; each stream of server-sent events has a connection of its own."""
    sampling = {"max_tokens": num_answer, "ignore_eos": True, "temperature": 0.0}
    if api == "websocket":
        await asyncio.gather(*(_hold_socket(port, num_requests, sampling, num_prompt) for _ in range(num_sockets)))
    else:
        post = _post(api, sampling, num_prompt)
        await asyncio.gather(*(_hold_stream(port, post) for _ in range(num_sockets * num_requests)))


if __name__ == "__main__":
    asyncio.run(_run(sys.argv[1], *map(int, sys.argv[2:])))
