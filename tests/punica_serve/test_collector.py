import gc
import weakref
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from punica_serve.collector import calm, calm_collector, leave_alone_what_is_there, without_collection


@pytest.fixture(autouse=True)
def as_a_process_begins() -> Iterator[None]:
    """Whatever other tests of this process have left behind."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_what_is_there_is_looked_at_no_more_and_what_comes_is() -> None:
    there: list[object] = [[]]
    leave_alone_what_is_there()
    comes: list[object] = [[]]
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(there) not in seen and id(comes) in seen
    assert gc.get_freeze_count() > 10_000, "the modules"


def test_a_calm_collector_looks_less_often_too() -> None:
    before = gc.get_threshold()
    calm_collector()
    assert all(calm > usual for calm, usual in zip(gc.get_threshold(), before, strict=True) if usual)


def test_it_is_calm_for_a_while_and_then_as_before() -> None:
    before = gc.get_threshold()
    with calm():
        assert gc.get_threshold() != before and gc.get_freeze_count()
    assert gc.get_threshold() == before and not gc.get_freeze_count()


class _Cycle:
    def __init__(self) -> None:
        self.own = self


def make_objects() -> list[list[object]]:
    """As many as it takes for the collector to look."""
    return [[] for _ in range(1000)]


def test_nothing_is_collected_inside() -> None:
    gc.set_threshold(1, 1, 1)
    with without_collection():
        cycle = weakref.ref(_Cycle())
        make_objects()
        assert cycle() is not None
    make_objects()
    assert cycle() is None


def test_an_error_inside_passes_and_leaves_the_collector_on() -> None:
    with pytest.raises(ValueError, match="a capture failed"), without_collection():
        raise ValueError("a capture failed")
    assert gc.isenabled()
    with without_collection():
        assert not gc.isenabled(), "the next may have it"


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with without_collection():
        pass
    assert not gc.isenabled()


def test_threads_take_turns_so_that_the_first_to_end_does_not_turn_it_on_for_the_second() -> None:
    enabled: list[bool] = []
    second_begins = Event()

    def second() -> None:
        second_begins.set()
        with without_collection():
            enabled.append(gc.isenabled())

    with without_collection():
        thread = Thread(target=second)
        thread.start()
        assert second_begins.wait(5)
        thread.join(0.05)
        assert thread.is_alive() and not enabled, "it waits for its turn"
    thread.join(5)
    assert enabled == [False] and gc.isenabled()
