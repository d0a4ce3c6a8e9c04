import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from punica_frontend.http import connection
from punica_frontend.http.connection import BodyLimit, BodyLimits, run_while_connected
from punica_serve.store.pace import MinRate


async def never(*_: Any) -> Any:
    await asyncio.Event().wait()


async def test_work_that_ends_gives_its_result() -> None:
    async def work() -> int:
        return 5

    assert await run_while_connected(never, work()) == 5


async def test_work_that_fails_raises() -> None:
    async def work() -> int:
        raise ValueError("so")

    with pytest.raises(ValueError, match="so"):
        await run_while_connected(never, work())


async def test_a_client_that_leaves_cancels_the_work() -> None:
    messages = iter([{"type": "http.request"}, {"type": "http.disconnect"}])

    async def receive() -> Message:
        return next(messages)

    assert await run_while_connected(receive, never()) is None


async def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    running = asyncio.create_task(run_while_connected(never, never()))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert asyncio.all_tasks() == before


async def read_to_the_end(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that reads a body, and then waits for the client to leave."""
    while (message := await receive())["type"] == "http.request":
        pass
    await send(message)


@pytest.mark.parametrize(("timeout_s", "silence_s"), [(0.001, 60.0), (60.0, 0.001)])
async def test_a_body_that_trickles_is_refused(
    timeout_s: float, silence_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BODY_SILENCE_S", silence_s)
    pieces = iter([{"type": "http.request", "body": b"x", "more_body": True}])

    async def receive() -> Message:
        return next(pieces, None) or await never()

    app = BodyLimit(read_to_the_end, BodyLimits(10, timeout_s), {})
    with pytest.raises(HTTPException) as caught:
        await app({"type": "http", "headers": [], "path": "/"}, receive, never)
    assert caught.value.status_code == 408


@pytest.mark.parametrize(("min_rate", "is_refused"), [(None, False), (MinRate(100_000, 0.1), True)])
async def test_a_body_may_have_to_come_at_some_rate(min_rate: MinRate | None, is_refused: bool) -> None:
    num_pieces = 0

    async def receive() -> Message:
        nonlocal num_pieces
        await asyncio.sleep(0.01)
        num_pieces += 1
        return {"type": "http.request", "body": b"x" * 10, "more_body": num_pieces < 30}

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            pass

    app = BodyLimit(read, BodyLimits(1000, min_rate=min_rate), {})
    scope = {"type": "http", "headers": [], "path": "/"}
    if not is_refused:
        await app(scope, receive, never)
        return
    with pytest.raises(HTTPException, match=r"less than 97 KiB/s over 0\.1 s; send it again") as caught:
        await app(scope, receive, never)
    assert caught.value.status_code == 408 and num_pieces < 30


async def test_the_time_that_is_spent_on_a_body_is_not_its_senders() -> None:
    pieces = [{"type": "http.request", "body": b"x", "more_body": more} for more in (True, True, False)]

    async def receive() -> Message:
        return pieces.pop(0)

    async def read_slowly(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(3):
            await receive()
            await asyncio.sleep(0.05)

    app = BodyLimit(read_slowly, BodyLimits(10, min_rate=MinRate(1 << 20, 0.02)), {})
    await app({"type": "http", "headers": [], "path": "/"}, receive, never)
    assert not pieces


@pytest.mark.parametrize(("path", "is_refused"), [("/", True), ("/upload", False), ("/upload/", True)])
async def test_a_route_may_have_limits_of_its_own(path: str, is_refused: bool) -> None:
    messages: Iterator[Message] = iter([{"type": "http.request", "body": b"x" * 11}, {"type": "http.disconnect"}])
    sent = []

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    app = BodyLimit(read_to_the_end, BodyLimits(10), {"/upload": BodyLimits(11)})
    if is_refused:
        with pytest.raises(HTTPException, match="longer than 10 bytes"):
            await app({"type": "http", "headers": [], "path": path}, receive, send)
    else:
        await app({"type": "http", "headers": [], "path": path}, receive, send)
        assert sent == [{"type": "http.disconnect"}]


async def test_a_body_that_is_announced_too_long_is_not_waited_for() -> None:
    head = {"type": "http", "headers": [(b"content-length", b"11")], "path": "/"}
    with pytest.raises(HTTPException, match="longer than 10 bytes") as caught:
        await BodyLimit(read_to_the_end, BodyLimits(10), {})(head, never, never)
    assert caught.value.status_code == 413


async def test_a_client_whose_body_has_come_may_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_SILENCE_S", 0.0)
    sent: list[Message | str] = []

    async def receive() -> Message:
        if not sent:
            sent.append("body")
            return {"type": "http.request", "body": b"x"}
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await BodyLimit(read_to_the_end, BodyLimits(10), {})({"type": "http", "headers": [], "path": "/"}, receive, send)
    assert sent == ["body", {"type": "http.disconnect"}]
