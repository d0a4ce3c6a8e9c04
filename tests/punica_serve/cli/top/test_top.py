"""`top` as a process, on a pseudo-terminal, against a small websocket server in place of the frontend."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from waits import DEADLINE_S, until

GPU = {
    "gpu": {"uuid": "GPU-1", "name": "host/0", "device": "cpu", "max_batch_size": 32, "num_kv_pages": 100},
    "batch_size_mean": 16.0,
    "num_adapters": 0,
    "free_kv_pages": 100,
    "resident_adapters": [],
    "adapters_used_ns": [],
    "tokens": 0,
    "is_draining": False,
}
#: The three seconds before now_ns.
HISTORY = {
    "at_ns": [7_000_000_000, 8_000_000_000, 9_000_000_000],
    "gpus": {"GPU-1": {"batch_size_mean": [None, 0.0, 32.0]}},
}

CLUSTER = {
    "incarnation": 1,
    "now_ns": 10_000_000_000,
    "gpus": [GPU],
    "queue_length": 7,
    "num_runners": 1,
    "num_frontends": 1,
    "advice": {"num_more_gpus": 0, "releasable_runners": []},
    "recent": {
        "window_s": 0.0,
        "requests_per_s": 0.0,
        "tokens_per_s": 0.0,
        "first_token_s": None,
        "inter_token_s": None,
    },
    "counters": {},
    "adapters": {},
    "marks": [],
}


def frame(**changes: Any) -> str:
    return json.dumps({"type": "cluster", "cluster": {**CLUSTER, **changes}})


async def tell(socket: ServerConnection) -> None:
    await socket.send(json.dumps({"type": "history", "history": HISTORY}))
    await socket.send(frame())
    await socket.wait_closed()


@asynccontextmanager
async def frontend(tell: Callable[[ServerConnection], Awaitable[None]] = tell, port: int = 0) -> AsyncIterator[Server]:
    async with serve(tell, "127.0.0.1", port) as server:
        yield server


def port_of(server: Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


class Terminal:
    """A pseudo-terminal of 24 lines with a `top` on it."""

    def __init__(self, fd: int, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.fd = fd
        self.written = b""
        asyncio.get_running_loop().add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            self.written += os.read(self.fd, 65_536)
        except OSError:  # the last process on it has gone
            asyncio.get_running_loop().remove_reader(self.fd)

    def press(self, key: bytes) -> None:
        os.write(self.fd, key)


@asynccontextmanager
async def top_on(url: str) -> AsyncIterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    before = termios.tcgetattr(theirs)
    command = (sys.executable, "-m", "punica_serve.cli", "top", "--url", url, "--per-s", "5")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    terminal = Terminal(ours, process)
    try:
        yield terminal
        assert termios.tcgetattr(theirs) == before
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)


async def top_once(*arguments: str, encoding: str = "utf-8") -> tuple[int, str, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "punica_serve.cli", "top", *arguments),
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    async with asyncio.timeout(DEADLINE_S):
        stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


@pytest.mark.parametrize("leave", ["q", "SIGINT"])
async def test_it_shows_the_cluster_until_it_is_left(leave: str) -> None:
    async with frontend() as server, top_on(f"http://127.0.0.1:{port_of(server)}") as terminal:
        await until(lambda: b"queue 7" in terminal.written)
        if leave == "q":
            terminal.press(b"q")
        else:
            terminal.process.send_signal(signal.SIGINT)
        async with asyncio.timeout(DEADLINE_S):
            assert await terminal.process.wait() == 0
        assert b"Traceback" not in terminal.written
        await until(lambda: b"\x1b[?1049l" in terminal.written)  # the screen that was there before is back


async def test_a_frontend_that_comes_back_is_found_again() -> None:
    async with frontend() as server:
        port = port_of(server)
        async with top_on(f"http://127.0.0.1:{port}") as terminal:
            await until(lambda: b"queue 7" in terminal.written)
            server.close()
            await server.wait_closed()
            await until(lambda: b"reconnecting" in terminal.written)

            async def tell_more(socket: ServerConnection) -> None:
                await socket.send(frame(queue_length=8))
                await socket.wait_closed()

            async with frontend(tell_more, port):
                await until(lambda: b"queue 8" in terminal.written)
                terminal.press(b"q")
                async with asyncio.timeout(DEADLINE_S):
                    assert await terminal.process.wait() == 0


async def test_once_is_for_scripts() -> None:
    async with frontend() as server:
        code, stdout, stderr = await top_once("--once", "--url", f"http://127.0.0.1:{port_of(server)}")
    assert (code, stderr) == (0, "")
    assert "queue 7" in stdout and "\x1b" not in stdout


@pytest.mark.parametrize(("encoding", "cells"), [("utf-8", "·█▄"), ("ascii", ".@+")])
async def test_once_prints_the_history_too(encoding: str, cells: str) -> None:
    async with frontend() as server:
        url = f"http://127.0.0.1:{port_of(server)}"
        code, stdout, _ = await top_once("--once", "--sort", "name", "--url", url, encoding=encoding)
    row = next(line.split() for line in stdout.splitlines() if line.startswith("host/0"))
    assert (code, row[:3]) == (0, ["host/0", cells, "16.0/32"])


async def test_without_a_frontend_or_a_terminal_it_says_so() -> None:
    code, _, stderr = await top_once("--once", "--url", "http://127.0.0.1:1")
    assert code == 2 and "no frontend answers at http://127.0.0.1:1" in stderr
    code, _, stderr = await top_once()
    assert code == 2 and stderr == "punica-serve: top needs a terminal; use `--once` to print the current state\n"


async def test_a_scheduler_that_is_not_there_and_a_key_that_is_refused() -> None:
    async def without_scheduler(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "unavailable", "error": {"message": "no scheduler"}}))
        await socket.wait_closed()

    async with frontend(without_scheduler) as server:
        code, _, stderr = await top_once("--once", "--url", f"http://127.0.0.1:{port_of(server)}")
    assert (code, stderr) == (2, "punica-serve: no scheduler\n")

    def refuse(connection: ServerConnection, request: Request) -> Response:
        return Response(401, "Unauthorized", Headers())

    async with serve(without_scheduler, "127.0.0.1", 0, process_request=refuse) as server:
        code, _, stderr = await top_once("--once", "--url", f"http://127.0.0.1:{port_of(server)}")
    assert code == 2 and "requires a valid API key" in stderr


def suspended(connection: ServerConnection, request: Request) -> Response:
    body = json.dumps({"error": {"message": "tenant 'acme' is suspended", "code": "tenant_suspended"}})
    return Response(403, "Forbidden", Headers(), body.encode())


async def test_what_a_frontend_that_refuses_says_is_told() -> None:
    async with serve(tell, "127.0.0.1", 0, process_request=suspended) as server:
        code, _, stderr = await top_once("--once", "--url", f"http://127.0.0.1:{port_of(server)}")
    assert (code, stderr) == (1, "punica-serve: tenant 'acme' is suspended\n")


async def test_a_refusal_ends_what_had_a_link_before() -> None:
    async with frontend() as server:
        port = port_of(server)
        async with top_on(f"http://127.0.0.1:{port}") as terminal:
            await until(lambda: b"queue 7" in terminal.written)
            server.close()
            await server.wait_closed()
            async with serve(tell, "127.0.0.1", port, process_request=suspended):
                async with asyncio.timeout(DEADLINE_S):
                    assert await terminal.process.wait() == 1
            await until(lambda: b"is suspended" in terminal.written)
