"""Service level objectives: what a request is promised, and how many promises were kept."""

from operator import add, sub

from msgspec.structs import astuple

from punica_serve.protocol.base import Struct
from punica_serve.protocol.sampling_ranges import Range

#: Seconds of any promise. Eleven days are as good as none, and still fit every clock in nanoseconds.
PROMISE_RANGE = Range(0.0, 1e6, above_low=True)


class Slo(Struct, frozen=True):
    """The latencies that a request is promised. They order and place requests; none is refused for them."""

    #: Seconds from the request's arrival at its frontend to its first token. None, here and below: no promise.
    first_token_s: float | None = None
    #: Mean seconds between two tokens of its answer.
    time_per_token_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError, which decoders turn into a ProtocolError, for times outside PROMISE_RANGE."""
        for promised_s in (self.first_token_s, self.time_per_token_s):
            if promised_s is not None and not PROMISE_RANGE.holds(promised_s):
                raise ValueError(f"a promise of {promised_s} s is not {PROMISE_RANGE}")

    def over(self, default: "Slo") -> "Slo":
        """Returns these promises, with those of ``default`` where this has none."""
        first_token_s = default.first_token_s if self.first_token_s is None else self.first_token_s
        time_per_token_s = default.time_per_token_s if self.time_per_token_s is None else self.time_per_token_s
        return Slo(first_token_s, time_per_token_s)


#: Promises nothing.
NO_SLO = Slo()


class PromiseCounts(Struct, frozen=True):
    """Promises of ended requests that were kept and broken."""

    first_token_kept: int = 0
    first_token_broken: int = 0
    time_per_token_kept: int = 0
    time_per_token_broken: int = 0

    def __add__(self, other: "PromiseCounts") -> "PromiseCounts":
        return PromiseCounts(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: "PromiseCounts") -> "PromiseCounts":
        """Returns the promises counted since ``other``."""
        return PromiseCounts(*map(sub, astuple(self), astuple(other)))

    def __bool__(self) -> bool:
        """Whether any promise was judged."""
        return self != NO_PROMISES


NO_PROMISES = PromiseCounts()
