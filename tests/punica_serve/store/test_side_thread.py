"""Work beside the caller's thread: in order, ended within, and its errors are the caller's."""

from threading import Event, current_thread

import pytest

from punica_serve.store.side_thread import side_thread
from waits import DEADLINE_S


def test_items_are_worked_on_in_order_and_all_of_them_within() -> None:
    seen: list[int] = []
    threads: set[str] = set()

    def work(item: int) -> None:
        threads.add(current_thread().name)
        seen.append(item)

    with side_thread(work) as side:
        for item in range(100):
            side.give(item)
    assert seen == list(range(100)) and threads == {"store-side-thread"}


def test_an_error_ends_the_callers_work_and_the_thread() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        raise OSError("no")

    with pytest.raises(OSError, match="no"), side_thread(work) as side:
        for item in range(100):
            side.give(item)
    assert seen == [0]


def test_an_error_of_the_caller_goes_first() -> None:
    def work(item: int) -> None:
        raise OSError("no")

    with pytest.raises(ValueError, match="mine"), side_thread(work) as side:
        side.give(0)
        raise ValueError("mine")


def test_an_offer_is_left_out_while_another_waits() -> None:
    begun, go_on = Event(), Event()
    seen: list[int] = []

    def work(item: int) -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        seen.append(item)

    with side_thread(work) as side:
        side.offer(0)
        assert begun.wait(DEADLINE_S)
        for item in range(1, 10):
            side.offer(item)
        go_on.set()
    assert seen == [0, 1]
