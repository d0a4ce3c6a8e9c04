"""Waits for states, never for times."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

#: Far more than anything here takes on a slow machine; less than a test's own limit, so that the reason is told.
DEADLINE_S = 120.0
POLL_S = 0.05


async def until(
    holds: Callable[[], bool | Awaitable[bool]],
    what: str,
    *,
    describe: Callable[[], object] = lambda: "",
    deadline_s: float = DEADLINE_S,
    poll_s: float = POLL_S,
) -> float:
    """Waits until it holds; returns the seconds that took. AssertionError at the deadline says what did not."""
    started_s = time.monotonic()
    while True:
        answer = holds()
        if inspect.isawaitable(answer):
            answer = await answer
        waited_s = time.monotonic() - started_s
        if answer:
            return waited_s
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {what}. {describe()}"
        await asyncio.sleep(poll_s)
