"""Where the time of an adapter's load went: from a request that needs it to its last byte on the device."""

import time
from dataclasses import dataclass, field
from enum import Enum


class LoadPhase(Enum):
    """The parts of a load, in their order. Each load lacks some: by where the adapter comes from."""

    #: Until its files are on this host; if packed as they come, until the last byte is read.
    FETCHING = "fetching its files from the store"
    #: Until the step loop or a thread begins with it.
    READER = "waiting for a reader thread"
    #: Until its host memory is taken.
    HOST_MEMORY = "taking host memory"
    #: Until the packed file is open, and its header checked.
    OPENING = "opening the packed file"
    #: Until its last chunk is in host memory, and its copy queued if a request waits for it.
    READING = "reading, checking and queueing chunks"
    #: Until the thread that began with it knows.
    ENDING = "noticing the last chunk"
    #: Until a folder is read, checked and packed; if packed as it came, until its digest is known to be right.
    PACKING = "reading and packing its folder"
    #: Until the step loop knows. A request that has its place then may be in a step, or wait for the last copies.
    STAGING = "waiting for the step loop to see it"
    #: Until all of it is on the device.
    COPYING = "copying the rest"


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One chunk of a packed file: times of ``time.perf_counter``, in seconds."""

    num_bytes: int
    #: A thread begins to read it.
    begun_s: float
    read_s: float
    checked_s: float
    #: Its copy to the device is queued: on a CPU, it was copied.
    queued_s: float


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """A phase of a load, from one time of ``time.perf_counter`` to another."""

    phase: LoadPhase
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class LoadTrace:
    """One load. Several threads write to it, each to its own phases; it is whole once COPYING has ended."""

    digest: str
    asked_s: float = field(default_factory=time.perf_counter)
    #: In any order; another thread may add one meanwhile.
    chunks: list[ChunkTimes] = field(default_factory=list)
    #: Whether the packed file was read past the page cache; None if none was read.
    is_direct: bool | None = None
    _ends_s: dict[LoadPhase, float] = field(default_factory=dict)

    def end(self, phase: LoadPhase, end_s: float | None = None) -> None:
        """The phase ends now, or has ended by ``time.perf_counter`` in seconds, unless it ends once more."""
        self._ends_s[phase] = time.perf_counter() if end_s is None else end_s

    @property
    def spans(self) -> tuple[LoadSpan, ...]:
        """The phases that have ended, each from the end of the one before it."""
        spans, start_s = [], self.asked_s
        for phase in LoadPhase:
            if (end_s := self._ends_s.get(phase)) is not None:
                spans.append(LoadSpan(phase, start_s, max(start_s, end_s)))
                start_s = spans[-1].end_s
        return tuple(spans)
