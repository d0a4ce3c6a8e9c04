"""Measures how long adapters take to the device on an idle engine, and emulates a slower link."""

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

from punica_serve.bench.driver import step
from punica_serve.engine.engine import Engine
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef

_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class LoadTime:
    """The load of an adapter that nobody else delays."""

    rank: int
    num_bytes: int
    #: How often each of its pieces was copied.
    num_copies: int
    #: The median, from the call that asks for it.
    seconds: float

    @property
    def gb_per_s(self) -> float:
        """The rate that requests see: its bytes, counted once, over the time."""
        return self.num_bytes / self.seconds / 1e9


@dataclass(frozen=True, slots=True)
class Link:
    """The link to the device: the load of an adapter of each rank."""

    #: Over the link as it is.
    own: tuple[LoadTime, ...]
    #: Over the link that the rows had.
    loads: tuple[LoadTime, ...]

    @property
    def num_copies(self) -> int:
        return self.loads[0].num_copies

    @property
    def is_emulated(self) -> bool:
        return self.num_copies > 1


def measure_load(engine: Engine, refs: Iterable[AdapterRef], rank: int, num_bytes: int, num_copies: int) -> LoadTime:
    """Loads some adapters that are not on the device. Raises RequestFailed if one does not arrive."""
    return LoadTime(rank, num_bytes, num_copies, statistics.median(_load_s(engine, ref) for ref in refs))


def copies_for(load: LoadTime, gb_per_s: float) -> int:
    """How often to copy each piece so that the rate, ``load``'s with one copy, comes close to this one."""
    return max(1, round(load.gb_per_s / gb_per_s))


def _load_s(engine: Engine, ref: AdapterRef) -> float:
    started_s = time.perf_counter()
    engine.prefetch(ref)
    step(engine)
    while ref.digest not in engine.resident_adapters:
        if time.perf_counter() - started_s > _DEADLINE_S:
            raise RequestFailed(f"an adapter is not on the device after {_DEADLINE_S:g} s")
        engine.wait(0.1)
        step(engine)
    return time.perf_counter() - started_s
