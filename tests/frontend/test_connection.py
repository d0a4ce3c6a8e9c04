import asyncio
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from punica_frontend import connection
from punica_frontend.connection import BodyLimit, BodyLimits, run_while_connected


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

    async def receive() -> Any:
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


async def read_to_the_end(scope: Any, receive: Any, send: Any) -> None:
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

    async def receive() -> Any:
        return next(pieces, None) or await never()

    app = BodyLimit(read_to_the_end, BodyLimits(10, timeout_s), {})
    with pytest.raises(HTTPException) as caught:
        await app({"type": "http", "headers": [], "path": "/"}, receive, never)
    assert caught.value.status_code == 408


@pytest.mark.parametrize(("path", "is_refused"), [("/", True), ("/upload", False), ("/upload/", True)])
async def test_a_route_may_have_limits_of_its_own(path: str, is_refused: bool) -> None:
    messages = iter([{"type": "http.request", "body": b"x" * 11}, {"type": "http.disconnect"}])
    sent = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
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
    sent: list[Any] = []

    async def receive() -> Any:
        if not sent:
            sent.append("body")
            return {"type": "http.request", "body": b"x"}
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await BodyLimit(read_to_the_end, BodyLimits(10), {})({"type": "http", "headers": [], "path": "/"}, receive, send)
    assert sent == ["body", {"type": "http.disconnect"}]
