"""Measures a part of a benchmark on a group in a process of its own.

Of the groups that a process has one after the other, only the first adds up over memory that all its GPUs map.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from rich.progress import Progress

from punica_serve.bench.subject import Subject
from punica_serve.errors import RequestFailed

T = TypeVar("T")


def measure_in_process(subject: Subject, measure: Callable[[Progress], T], progress: Progress) -> T:
    """What ``measure`` returns: of a group in a new process without a bar, of a device by itself in this one.

    Raises what ``measure`` does, and RequestFailed if the new process ends before it is done.
    """
    if subject.group is None:
        measured = measure(progress)
        subject.free_memory()
        return measured
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        try:
            return processes.submit(_measure, measure).result()
        except BrokenProcessPool:
            raise RequestFailed("the process that led the measured group has ended; its output says why") from None


def _measure(measure: Callable[[Progress], T]) -> T:
    """In the new process."""
    return measure(Progress(disable=True))
