"""The options of `bench cpu-assist`, and its results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: How a prefill's rows get to processes and back.
Way = Literal["shared memory", "sockets"]
#: Who computes them.
Workers = Literal["processes", "threads"]
#: How the device waits for processes: within its stream, or the host for both.
Waits = Literal["sync-free", "synchronous"]


@dataclass(frozen=True, slots=True)
class FigureSettings:
    """The options."""

    #: Rows of the prefill.
    num_tokens: int = 128
    #: Rank of the adapter, on the first group of projections (q, k and v).
    rank: int = 32
    #: Processes, or threads, in ascending order.
    counts: tuple[int, ...] = (1, 2, 4, 8)
    #: Repeats, of which the median counts.
    num_repeats: int = 20


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """Rows to processes that copy them, and back (figure 17)."""

    way: Way
    num_processes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """x A B of one layer (figure 18)."""

    workers: Workers
    num_cores: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AssistedPrefillTime:
    """All layers' base products of one group, and what processes add to them (figure 16)."""

    waits: Waits
    num_processes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class FiguresMeasured:
    """All results."""

    round_trips: Sequence[RoundTrip]
    layers: Sequence[LayerTime]
    #: Empty without a GPU.
    prefills: Sequence[AssistedPrefillTime]
    failures: Sequence[str] = ()
