"""The end of a process whose parent has ended, also where it can't run Python any more."""

import ctypes
import signal
import sys

#: `man 2 PR_SET_PDEATHSIG`
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """The kernel will kill this process when the thread that started it ends. Systems other than Linux don't."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
