"""The requests of a run that have not arrived: by the clock, or whenever another one ends."""

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from punica_serve.protocol import Request


class Arriving(NamedTuple):
    """A request and its time of arrival, in seconds after the start."""

    due_s: float
    request: Request


class RequestFeed(Protocol):
    """Decides when requests are added."""

    def take(self, now_s: float, num_unfinished: int) -> list[Arriving]:
        """Removes those that are to be added now, when ``num_unfinished`` of the earlier ones are unfinished."""
        ...

    def next_s(self, now_s: float) -> float | None:
        """The time of the next arrival, if the clock alone decides; None if none is left."""
        ...


class TimedQueue:
    """Requests arrive by the clock; at most ``limit`` are added at a time, and the others wait here."""

    def __init__(self, requests: Iterable[Arriving], limit: float = math.inf) -> None:
        self._waiting = deque(requests)
        self._limit = limit

    def take(self, now_s: float, num_unfinished: int) -> list[Arriving]:
        due: list[Arriving] = []
        while self._waiting and self._waiting[0].due_s <= now_s and num_unfinished + len(due) < self._limit:
            due.append(self._waiting.popleft())
        return due

    def next_s(self, now_s: float) -> float | None:
        return max(now_s, self._waiting[0].due_s) if self._waiting else None


class ClosedLoop:
    """A request arrives when another ends, so that always ``num_in_flight`` are there, until the time is over.

    The first ones arrive even if the time is over by then.
    """

    def __init__(self, requests: Iterable[Request], num_in_flight: int, seconds: float) -> None:
        self._waiting = deque(requests)
        self._has_begun = False
        self._num_in_flight = num_in_flight
        self._seconds = seconds

    def take(self, now_s: float, num_unfinished: int) -> list[Arriving]:
        if self._has_begun and now_s >= self._seconds:
            self._waiting.clear()
        self._has_begun = True
        count = min(self._num_in_flight - num_unfinished, len(self._waiting))
        return [Arriving(now_s, self._waiting.popleft()) for _ in range(count)]

    def next_s(self, now_s: float) -> float | None:
        return now_s if self._waiting else None
