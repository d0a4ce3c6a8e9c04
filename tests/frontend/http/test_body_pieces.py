"""Pieces of a stream past the middlewares, through our server and through others."""

import asyncio
import re
import socket
from collections import Counter
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from punica_frontend.http.body_pieces import piece_writer
from punica_frontend.http.uvicorn_http import GuardedHttp, _CyclePieces
from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import DEADLINE_S, until

OPENAI = {"prompt": "42é", "stream": True, "stream_options": {"include_usage": True}}
NATIVE = {"prompt": "42é", "stream": True}
#: The fields that differ between two answers.
OWN = re.compile(r'"(id|created|request_id)":("[^"]*"|\d+)')
TEXT = re.compile(r'"text":"([^"]*)"')


async def stream_pieces(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that sends two pieces and an end."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    piece = piece_writer(scope, send).send
    await piece(b"one")
    await piece(b"")
    await piece(b"seventeen letters")
    await send({"type": "http.response.body", "body": b"!", "more_body": False})


class Transport:
    """Takes everything, and keeps it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        if data:
            self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connection(transport: Transport) -> GuardedHttp:
    config = uvicorn.Config(stream_pieces, log_config=None, lifespan="off")
    options: dict[str, Any] = {"config": config, "server_state": ServerState(), "app_state": {}}
    protocol = GuardedHttp(Counter(), **options, _loop=asyncio.get_running_loop())
    protocol.connection_made(cast(asyncio.Transport, transport))
    return protocol


@pytest.mark.parametrize(
    ("version", "pieces"),
    [
        (b"1.1", [b"3\r\none\r\n", b"11\r\nseventeen letters\r\n", b"1\r\n!\r\n", b"0\r\n\r\n"]),
        (b"1.0", [b"one", b"seventeen letters", b"!"]),
    ],
)
async def test_pieces_are_framed_as_the_client_reads_them(version: bytes, pieces: list[bytes]) -> None:
    transport = Transport()
    protocol = connection(transport)
    protocol.data_received(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
    await until(lambda: protocol.cycle.response_complete)
    await until(lambda: bool(transport.written))
    (written,) = transport.written
    assert written.startswith(b"HTTP/1.1 200") and written.endswith(b"\r\n\r\n" + b"".join(pieces))


async def test_a_full_buffer_holds_pieces_back_and_a_client_that_left_gets_none() -> None:
    transport = Transport()
    protocol = connection(transport)
    protocol.flow.pause_writing()
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0)
    assert not transport.written
    protocol.connection_lost(None)
    await until(lambda: not protocol.tasks)
    assert not transport.written


async def test_a_server_says_when_it_takes_a_piece_at_once() -> None:
    protocol = connection(Transport())
    protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    (task,) = protocol.tasks
    writer = _CyclePieces(protocol, protocol.cycle)
    assert writer.is_writable
    protocol.flow.pause_writing()
    assert not writer.is_writable
    protocol.flow.resume_writing()
    protocol.cycle.disconnected = True
    assert not writer.is_writable
    await asyncio.wait([task])


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", OPENAI), ("/v1/generate", NATIVE)])
async def test_both_ways_send_the_same_bytes(
    client: httpx.AsyncClient, server: EmbeddedServer, listener: socket.socket, path: str, body: dict[str, Any]
) -> None:
    host, port = listener.getsockname()
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=DEADLINE_S, trust_env=False) as direct:
        long, short = [await http.post(path, json=body) for http in (client, direct)]
    assert OWN.sub("", long.text) == OWN.sub("", short.text) and "42é" in "".join(TEXT.findall(short.text))
