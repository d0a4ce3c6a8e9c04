"""Calls that may hang: their number is bounded, and no failed start of a thread takes a place for good."""

import asyncio
import threading

import pytest

from punica_serve.errors import StoreUnavailable
from punica_serve.store.threads import StoreThreads


async def test_an_abandoned_call_keeps_its_place_until_it_ends() -> None:
    threads, goes_on = StoreThreads(1, "looking"), threading.Event()
    with pytest.raises(StoreUnavailable, match=r"looking took longer than 0\.05 s"):
        await threads.call(lambda: goes_on.wait(10.0), timeout_s=0.05)
    ran: list[int] = []
    with pytest.raises(StoreUnavailable):
        await threads.call(lambda: ran.append(1), timeout_s=0.05)
    assert not ran
    goes_on.set()
    assert await threads.call(lambda: 7, timeout_s=10.0) == 7


async def test_a_thread_that_the_system_refuses_leaves_its_place_free(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = StoreThreads(1, "looking")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.call(lambda: 1, timeout_s=10.0)
    assert await asyncio.wait_for(threads.call(lambda: 7, timeout_s=10.0), 20.0) == 7
