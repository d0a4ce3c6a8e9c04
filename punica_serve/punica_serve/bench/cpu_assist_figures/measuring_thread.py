"""Keeps the thread that measures out of the way of processes that spin on cores of their own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def off_last_cores(count: int) -> Iterator[None]:
    """Keeps the calling thread, and torch's work for it, off the last ``count`` cores that the process may use.

    Processes are bound to these and look for words all the time. A thread beside one of them waits for a slice of the
    scheduler's time, milliseconds, and so does a parallel copy that has a thread there. Without as many cores nothing
    is kept apart.
    """
    cores = os.sched_getaffinity(0)
    others = sorted(cores)[:-count] if count else cores
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        os.sched_setaffinity(0, others or cores)
        yield
    finally:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(num_threads)
