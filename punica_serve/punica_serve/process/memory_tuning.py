"""Tunes Python's garbage collector, and returns the C library's free memory to the kernel."""

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Never

#: Thresholds of gc.set_threshold: net allocations before the youngest generation is collected, and how many collections
#: of each generation precede one of the next.
_RARE = (50_000, 20, 100)

_TRIM_INTERVAL_S = 10.0

#: The collector belongs to the whole process, so only one thread at a time may disable it and restore its state.
_off = Lock()
#: Freezes that have not ended, as ``freeze_gc``'s never do; for one thread at a time.
#: The collector's own count does not tell: Python 3.12 starts with frozen objects.
_num_freezes = 0


def freeze_gc() -> None:
    """Excludes all objects that exist now, mostly modules, from garbage collection.

    For a process that is about to serve. A collection that traverses all modules of torch or of a frontend takes
    100 ms, during which every stream would pause.
    """
    global _num_freezes
    gc.collect()
    gc.freeze()
    _num_freezes += 1


def tune_gc() -> None:
    """Freezes existing objects, and makes collections rarer.

    A collection that traverses tens of thousands of live requests would delay tokens. Neither the scheduler's core nor
    a frontend's requests make cycles; errors and closed connections make a few, which can wait.
    """
    freeze_gc()
    gc.set_threshold(*_RARE)


@contextmanager
def frozen_gc() -> Iterator[None]:
    """``freeze_gc`` for the body: a measurement in which an engine runs as it does in a worker.

    What was frozen can be collected afterwards, unless an outer freeze goes on.
    """
    global _num_freezes
    freeze_gc()
    try:
        yield
    finally:
        _num_freezes -= 1
        if not _num_freezes:
            gc.unfreeze()


@contextmanager
def tuned_gc() -> Iterator[None]:
    """``tune_gc`` for the body, a simulation or a measurement; restores the settings afterwards."""
    thresholds = gc.get_threshold()
    with frozen_gc():
        gc.set_threshold(*_RARE)
        try:
            yield
        finally:
            gc.set_threshold(*thresholds)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disables garbage collection in the body.

    Threads take turns, so it must not be nested, and the body must not wait for a thread that may come here.
    """
    with _off:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()


def trim_heap() -> None:
    """Returns free pages that the C library keeps for later allocations to the kernel. Releases the GIL.

    Threads and buffers of long texts leave such pages behind, which would otherwise stay for the life of the process.
    It takes some 20 ms for 100 MB, and does nothing without glibc.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


async def keep_trimming_heap() -> Never:
    """Calls ``trim_heap`` every few seconds, in a thread, until cancelled."""
    while True:
        await asyncio.sleep(_TRIM_INTERVAL_S)
        await asyncio.to_thread(trim_heap)


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
