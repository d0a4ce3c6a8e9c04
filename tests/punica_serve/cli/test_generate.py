"""`generate` as a process of its own, against a small websocket server in place of the frontend."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from waits import DEADLINE_S

Cli = Callable[..., tuple[int, str, str]]
Answer = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]


@asynccontextmanager
async def frontend(answer: Answer) -> AsyncIterator[str]:
    """The URL of a server that answers one request on every socket."""

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.path == "/v1/generate/stream"
        await answer(socket, json.loads(await socket.recv()))

    async with serve(handle, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def frame(text: str, finish_reason: str | None = None, error: dict[str, str] | None = None) -> str:
    return json.dumps(
        {"request_id": "1", "index": 0, "token_ids": [], "text": text, "finish_reason": finish_reason, "error": error}
    )


@asynccontextmanager
async def generating(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "punica_serve.cli", "generate", *arguments)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def generate(*arguments: str) -> tuple[int, str, str]:
    async with generating(*arguments) as process:
        stdout, stderr = await process.communicate()
        assert process.returncode is not None
        return process.returncode, stdout.decode(), stderr.decode()


async def test_the_answer_is_printed_as_it_comes() -> None:
    first_was_read = asyncio.Event()

    async def answer(socket: ServerConnection, _: dict[str, Any]) -> None:
        await socket.send(frame("XL"))
        await first_was_read.wait()
        await socket.send(frame("II", "stop"))

    async with frontend(answer) as url, generating("--url", url, "42") as process:
        assert process.stdout is not None
        assert await process.stdout.readexactly(2) == b"XL"
        first_was_read.set()
        assert await process.stdout.read() == b"II\n"
        assert await process.wait() == 0


async def test_only_the_options_that_were_given_are_sent() -> None:
    requests = []

    async def answer(socket: ServerConnection, request: dict[str, Any]) -> None:
        requests.append(request)
        await socket.send(frame("", "length"))

    sampling = ("--max-tokens", "5", "--temperature", "0", "--top-p", "0.5", "--top-k", "3", "--seed", "7")
    options = ("--lora-id", "roman", *sampling, "--stop", "x", "--stop", "y")
    async with frontend(answer) as url:
        await generate("--url", url, "42")
        await generate("--url", f"{url}/", *options, "42")
    plain = {"op": "generate", "request_id": "1", "prompt": "42"}
    given = {"lora_id": "roman", "max_tokens": 5, "temperature": 0, "top_p": 0.5, "top_k": 3, "seed": 7}
    assert requests == [plain, {**plain, **given, "stop": ["x", "y"]}]


async def test_the_servers_error_is_one_line() -> None:
    async def answer(socket: ServerConnection, _: dict[str, Any]) -> None:
        await socket.send(frame("", "error", {"message": "there is no adapter 'x'", "code": "adapter_not_found"}))

    async with frontend(answer) as url:
        assert await generate("--url", url, "42") == (1, "", "punica-serve: there is no adapter 'x'\n")


@pytest.mark.parametrize("close_code", [1000, 1011])
async def test_an_answer_that_breaks_off_is_an_error(close_code: int) -> None:
    async def answer(socket: ServerConnection, _: dict[str, Any]) -> None:
        await socket.send(frame("XL"))
        await socket.close(close_code)

    async with frontend(answer) as url:
        exit_code, stdout, stderr = await generate("--url", url, "42")
    assert (exit_code, stdout) == (1, "XL")
    assert stderr == "punica-serve: the server closed the connection before the end of the answer\n"


async def test_ctrl_c_closes_the_socket_which_cancels_the_request() -> None:
    closed = asyncio.Event()

    async def answer(socket: ServerConnection, _: dict[str, Any]) -> None:
        await socket.send(frame("XL"))
        await socket.wait_closed()
        closed.set()

    async with frontend(answer) as url, generating("--url", url, "42") as process:
        assert process.stdout is not None and process.stderr is not None
        await process.stdout.readexactly(2)
        process.send_signal(signal.SIGINT)
        await closed.wait()
        assert await process.wait() == 130
        assert b"Traceback" not in await process.stderr.read()


async def test_nobody_listening_says_how_to_start(unused_port: int) -> None:
    exit_code, stdout, stderr = await generate("--url", f"http://127.0.0.1:{unused_port}", "42")
    assert (exit_code, stdout) == (2, "")
    assert stderr.startswith(
        f"punica-serve: no frontend answers at http://127.0.0.1:{unused_port} (Connection refused); "
    )
    assert "`punica-serve up`" in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://a..b:20",
        "",
        "http://",
    ],
)
def test_a_url_that_is_none_is_refused(url: str, cli: Cli) -> None:
    exit_code, stdout, stderr = cli("generate", "--url", url, "42")
    assert (exit_code, stdout) == (2, "")
    assert stderr == f"punica-serve: {url!r} (`--url`, PUNICA_URL) is not of the form http://HOST:PORT\n"


async def test_the_key_is_shown_and_one_that_is_not_valid_is_told() -> None:
    shown = []

    def check(_: ServerConnection, request: Request) -> Response | None:
        shown.append(request.headers["authorization"])
        return Response(401, "Unauthorized", Headers(), b"") if "wrong" in shown[-1] else None

    async def handle(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send(frame("XLII", "stop"))

    async with serve(handle, "127.0.0.1", 0, process_request=check) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await generate("42", "--url", url, "--key", "right") == (0, "XLII\n", "")
        code, _, says = await generate("42", "--url", url, "--key", "wrong")
    assert shown == ["Bearer right", "Bearer wrong"]
    assert code != 0 and "PUNICA_API_KEY" in says
