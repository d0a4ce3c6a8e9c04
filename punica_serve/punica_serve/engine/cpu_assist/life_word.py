"""A word in shared memory that tells whether a process lives, and that the kernel changes when it dies.

It is a robust futex (`man 2 set_robust_list`): it holds the process's number, which the kernel replaces by ``DEAD`` as
soon as the process can't run any more. Other notices of its end, as of a pipe or from `waitpid`, come only once its
memory is unmapped, which takes the longer the more there is: tens of milliseconds for torch and a host cache.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from punica_kernels.exchange_words import DEAD
from punica_serve.engine.cpu_assist.exchange_memory import Words

#: The system calls' numbers on x86-64.
_SET_ROBUST_LIST, _GET_ROBUST_LIST = 273, 274


class _RobustList(ctypes.Structure):
    """The kernel's list of the futexes that a thread holds, and its only entry, which is beside it."""

    _fields_ = (
        ("first", ctypes.c_void_p),
        ("offset", ctypes.c_long),
        ("pending", ctypes.c_void_p),
        ("entry", ctypes.c_void_p),
    )
    #: Bytes of the list's head.
    NUM_BYTES = 24

    def __init__(self, word: int) -> None:
        """``word``: its address."""
        head = ctypes.addressof(self)
        entry = head + _RobustList.entry.offset
        super().__init__(entry, word - entry, None, head)


@contextmanager
def shown_alive(word: Words) -> Iterator[None]:
    """Holds the word, int64 [1], 0 until now, as long as the calling thread lives, and at most until the end.

    The thread must be the process's main one. Raises OSError if the kernel has no such lists.
    """
    futexes, former = _RobustList(word.ctypes.data), robust_list()
    _set_robust_list(ctypes.addressof(futexes))
    word[0] = os.getpid()
    try:
        yield
    finally:
        word[0] = DEAD  # the kernel leaves a word alone that has not the thread's number
        _set_robust_list(former)  # it would read ours at the thread's end, when the memory is something else's


def require_robust_lists() -> None:
    """Raises OSError where the kernel has no such lists, or a sandbox does not let it be asked. Changes nothing."""
    _set_robust_list(robust_list())


def robust_list() -> int | None:
    """The address of the calling thread's list; None without one. Raises OSError."""
    head, num_bytes = ctypes.c_void_p(), ctypes.c_size_t()
    _call(_GET_ROBUST_LIST, 0, ctypes.byref(head), ctypes.byref(num_bytes))
    return head.value


def _set_robust_list(head: int | None) -> None:
    _call(_SET_ROBUST_LIST, ctypes.c_void_p(head), ctypes.c_size_t(_RobustList.NUM_BYTES))


def _call(number: int, *arguments: Any) -> None:
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments):
        raise OSError(ctypes.get_errno(), "the kernel does not tell of the ends of processes (set_robust_list)")
