"""How a process lives with Python's collector of cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

#: Objects made beyond those gone before the young are looked at; and how often each older generation is, in looks at
#: the one before it.
_RARE = (50_000, 20, 100)

#: The collector is the process's: of threads that want it off one has it so at a time, and finds it as it was.
_off = Lock()


def leave_alone_what_is_there() -> None:
    """Has the collector look no more at what is there now: modules above all, none of which is ever garbage.

    For a process that is about to serve. A look at all of torch's or of a frontend's modules takes 100 ms, for which
    every stream would pause.
    """
    gc.collect()
    gc.freeze()


def calm_collector() -> None:
    """Has it stop the process less often, too.

    Tens of thousands of live requests are no garbage, and a look at all of them takes as long as a token may take to
    pass. The scheduler's core makes no cycles; errors and closed links make a few, which can wait.
    """
    leave_alone_what_is_there()
    gc.set_threshold(*_RARE)


@contextmanager
def calm() -> Iterator[None]:
    """The same for what runs inside, a simulation or a measurement; and as before afterwards."""
    thresholds = gc.get_threshold()
    calm_collector()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


@contextmanager
def without_collection() -> Iterator[None]:
    """Nothing is collected inside; afterwards, if it was before. Threads take turns, so one may not nest it."""
    with _off:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_enabled:
                gc.enable()
