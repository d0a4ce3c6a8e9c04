"""Waits for states, never for times."""

import asyncio
import inspect
import time
from collections.abc import Callable

#: Far more than anything here takes on a slow machine; less than a test's own limit, so that the reason is told.
DEADLINE_S = 100.0
#: The first and the longest delay between two polls.
FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05


async def until(
    holds: Callable[[], object],
    what: str = "what the test waits for",
    *,
    describe: Callable[[], object] = lambda: "",
    deadline_s: float = DEADLINE_S,
) -> float:
    """Waits until it holds, or what it gives to await does; returns the seconds that took.

    AssertionError at the deadline says what did not.
    """
    started_s = time.monotonic()
    pause_s = FIRST_PAUSE_S
    while True:
        answer = holds()
        if inspect.isawaitable(answer):
            answer = await answer
        waited_s = time.monotonic() - started_s
        if answer:
            return waited_s
        assert waited_s < deadline_s, f"not within {deadline_s:g} s: {what}. {describe()}"
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def wait_for(holds: Callable[[], object], what: str = "what the test waits for") -> None:
    """``until`` outside an event loop."""
    asyncio.run(until(holds, what))
