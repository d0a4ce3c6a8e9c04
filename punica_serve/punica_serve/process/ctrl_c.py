"""Child processes that leave a terminal's Ctrl-C to their parent."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Programs that this thread starts meanwhile never get SIGINT, which a terminal sends to them too.

    A child that ignores it by itself does so too late: until then its interpreter starts, or it imports torch, and
    Ctrl-C prints the traceback of that. uvloop's subprocesses begin with no signal blocked, whatever their parent's
    thread blocks; those of ``subprocess`` and asyncio inherit what it does.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
