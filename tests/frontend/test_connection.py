import asyncio
from typing import Any

import pytest

from punica_frontend.connection import run_while_connected


async def never() -> Any:
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
