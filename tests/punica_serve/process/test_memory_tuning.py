import asyncio
import gc
import os
import weakref
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from memory_samples import anonymous_bytes
from punica_serve.process import memory_tuning
from punica_serve.process.memory_tuning import (
    freeze_gc,
    frozen_gc,
    gc_disabled,
    keep_trimming_heap,
    trim_heap,
    tune_gc,
    tuned_gc,
)
from waits import DEADLINE_S, until


@pytest.fixture(autouse=True)
def as_a_process_begins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets the collector as in a new process, whatever other tests have changed."""
    monkeypatch.setattr(memory_tuning, "_num_freezes", 0)
    thresholds, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    gc.enable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if is_frozen:
        gc.freeze()


def test_existing_objects_are_excluded_from_collection_and_new_ones_are_not() -> None:
    old: list[object] = [[]]
    freeze_gc()
    new: list[object] = [[]]
    seen = {id(thing) for thing in gc.get_objects()}
    assert id(old) not in seen and id(new) in seen
    assert gc.get_freeze_count() > 10_000, "the modules"


def test_a_tuned_collector_collects_less_often_too() -> None:
    before = gc.get_threshold()
    tune_gc()
    assert all(tuned > usual for tuned, usual in zip(gc.get_threshold(), before, strict=True) if usual)


def test_what_was_frozen_for_a_measurement_is_not_afterwards() -> None:
    before = gc.get_threshold()
    with frozen_gc():
        assert gc.get_freeze_count() > 10_000 and gc.get_threshold() == before
    assert not gc.get_freeze_count()
    freeze_gc()
    with frozen_gc():
        pass
    assert gc.get_freeze_count(), "the outer freeze goes on"


def test_what_was_frozen_for_a_measurement_is_freed_where_python_starts_with_frozen_objects() -> None:
    gc.freeze()  # as Python 3.12 does
    cycle = _Cycle()
    freed = weakref.ref(cycle)
    with frozen_gc():
        pass
    del cycle
    gc.collect()
    assert freed() is None


def test_tuned_settings_are_restored_afterwards() -> None:
    before = gc.get_threshold()
    with tuned_gc():
        assert gc.get_threshold() != before and gc.get_freeze_count()
    assert gc.get_threshold() == before and not gc.get_freeze_count()
    freeze_gc()
    with tuned_gc():
        pass
    assert gc.get_freeze_count() > 10_000, "as they were"


class _Cycle:
    def __init__(self) -> None:
        self.own = self


def make_objects() -> list[list[object]]:
    """Enough objects to trigger a collection."""
    return [[] for _ in range(1000)]


def test_nothing_is_collected_inside() -> None:
    gc.set_threshold(1, 1, 1)
    with gc_disabled():
        cycle = weakref.ref(_Cycle())
        make_objects()
        assert cycle() is not None
    make_objects()
    assert cycle() is None


def test_an_error_inside_passes_and_leaves_the_collector_on() -> None:
    with pytest.raises(ValueError, match="a capture failed"), gc_disabled():
        raise ValueError("a capture failed")
    assert gc.isenabled()
    with gc_disabled():
        assert not gc.isenabled(), "the next may have it"


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with gc_disabled():
        pass
    assert not gc.isenabled()


def test_threads_take_turns_so_that_the_first_to_end_does_not_turn_it_on_for_the_second() -> None:
    enabled: list[bool] = []
    second_begins = Event()

    def second() -> None:
        second_begins.set()
        with gc_disabled():
            enabled.append(gc.isenabled())

    with gc_disabled():
        thread = Thread(target=second)
        thread.start()
        assert second_begins.wait(DEADLINE_S)
        thread.join(0.05)
        assert thread.is_alive() and not enabled, "it waits for its turn"
    thread.join(DEADLINE_S)
    assert enabled == [False] and gc.isenabled()


def leave_free_pages_behind() -> list[bytes]:
    """Frees 64 MiB of the C library's heap below a block that stays, so that the heap does not shrink by itself."""
    pieces = [os.urandom(64 << 10) for _ in range(1 << 10)]
    return pieces[-1:]


def test_memory_that_was_freed_goes_back_to_the_kernel() -> None:
    kept = leave_free_pages_behind()
    before_bytes = anonymous_bytes(os.getpid())
    trim_heap()
    assert anonymous_bytes(os.getpid()) < before_bytes - (32 << 20) and kept


async def test_a_process_that_serves_gives_memory_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_tuning, "_TRIM_INTERVAL_S", 0.01)
    kept = leave_free_pages_behind()
    before_bytes = anonymous_bytes(os.getpid())
    giving = asyncio.create_task(keep_trimming_heap())
    await until(lambda: anonymous_bytes(os.getpid()) < before_bytes - (32 << 20), "memory is given back")
    giving.cancel()
    assert kept
