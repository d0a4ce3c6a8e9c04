"""Times of the requests of one run, and the results computed from them. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from punica_serve.bench.percentiles import percentiles_ms

#: Those of a result's times, in milliseconds; None where nothing was measured.
Percentiles = tuple[float | None, ...]


@dataclass(slots=True)
class ServedTimes:
    """One request, in seconds since the start of the run."""

    #: When it should have been sent: later sending is part of its wait.
    due_s: float
    #: When tokens came, and how many there were by then.
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended_s: float | None = None
    #: Why it failed; None if it did not.
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.arrivals[-1][1] if self.arrivals else 0

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.due_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between tokens; of tokens that come together, one time to the tokens before."""
        times = [at_s for at_s, _ in self.arrivals]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def per_token_s(self) -> float:
        """Mean time for each token after the first ones."""
        num_later = self.num_tokens - self.arrivals[0][1]
        return (self.arrivals[-1][0] - self.arrivals[0][0]) / num_later if num_later else 0.0


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """The latencies that a request must keep to count for goodput."""

    first_token_s: float
    per_token_s: float

    def is_met(self, times: ServedTimes) -> bool:
        return times.first_token_s <= self.first_token_s and times.per_token_s <= self.per_token_s


@dataclass(frozen=True, slots=True)
class ServingResult:
    """The results of one workload with one population."""

    num_requests: int
    num_failed: int
    seconds: float
    tokens_per_s: float
    first_token_ms: Percentiles
    gap_ms: Percentiles
    #: Requests a second that met the service level.
    goodput_per_s: float
    #: Why the first one failed.
    first_error: str | None


#: The percentiles of a result's times.
PERCENTS = (50, 99)


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Percentiles of a part of a load's times."""

    first_token_ms: Percentiles
    gap_ms: Percentiles


@dataclass(frozen=True, slots=True)
class LongPromptResult:
    """The times of a load while long prompts came in beside it, and otherwise."""

    #: Long prompts that got their first token.
    num_prompts: int
    first_token_ms: Percentiles
    #: Times of requests that were sent while a long prompt came in, and of tokens between which one came in.
    beside: LoadTimes
    without: LoadTimes
    #: The first one's that failed.
    error: str | None


def beside_long_prompts(requests: Sequence[ServedTimes], long: Sequence[ServedTimes]) -> LongPromptResult:
    """Divides the times of a load: a long prompt comes in from its sending to its first token."""
    whole = [times for times in long if times.error is None and times.arrivals]
    spans = [(times.due_s, times.arrivals[0][0]) for times in whole]

    def is_beside(begin_s: float, end_s: float) -> bool:
        return any(begin_s <= last and first <= end_s for first, last in spans)

    return LongPromptResult(
        num_prompts=len(whole),
        first_token_ms=_percentiles_ms([times.first_token_s for times in whole]),
        beside=_load_times(requests, is_beside),
        without=_load_times(requests, lambda begin_s, end_s: not is_beside(begin_s, end_s)),
        error=next((times.error for times in long if times.error is not None), None),
    )


def _load_times(requests: Sequence[ServedTimes], counts: Callable[[float, float], bool]) -> LoadTimes:
    """First tokens by when they were sent for, and gaps by when they lasted: those that count."""
    begun = [times for times in requests if times.arrivals]
    arrivals = [(earlier, later) for times in begun for (earlier, _), (later, _) in pairwise(times.arrivals)]
    return LoadTimes(
        _percentiles_ms([times.first_token_s for times in begun if counts(times.due_s, times.due_s)]),
        _percentiles_ms([later - earlier for earlier, later in arrivals if counts(earlier, later)]),
    )


def _percentiles_ms(seconds: list[float]) -> Percentiles:
    return percentiles_ms(seconds, *PERCENTS) if seconds else (None,) * len(PERCENTS)


def result_of(requests: Sequence[ServedTimes], level: ServiceLevel) -> ServingResult:
    """Failed requests count as failed, and in nothing else."""
    whole = [times for times in requests if times.error is None and times.arrivals]
    errors = [times.error or "no tokens came" for times in requests if times.error is not None or not times.arrivals]
    ends = [times.ended_s for times in whole if times.ended_s is not None]
    seconds = max(ends, default=0.0) - min((times.due_s for times in whole), default=0.0)
    gaps = [gap for times in whole for gap in times.gaps_s]
    return ServingResult(
        num_requests=len(requests),
        num_failed=len(errors),
        seconds=seconds,
        tokens_per_s=sum(times.num_tokens for times in whole) / seconds if seconds else 0.0,
        first_token_ms=_percentiles_ms([times.first_token_s for times in whole]),
        gap_ms=_percentiles_ms(gaps),
        goodput_per_s=sum(map(level.is_met, whole)) / seconds if seconds else 0.0,
        first_error=errors[0] if errors else None,
    )
