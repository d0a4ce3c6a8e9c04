"""Times of the requests of one run, and the results computed from them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from punica_serve.bench.percentiles import percentiles_ms


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
    first_token_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    #: Requests a second that met the service level.
    goodput_per_s: float
    #: Why the first one failed.
    first_error: str | None


#: The percentiles of a result's times.
PERCENTS = (50, 99)


@dataclass(frozen=True, slots=True)
class LongPromptResult:
    """The times between tokens of a load while long prompts came in beside it, and otherwise."""

    #: Long prompts that got their first token.
    num_prompts: int
    first_token_ms: tuple[float, ...]
    gap_ms: tuple[float, ...]
    other_gap_ms: tuple[float, ...]
    #: The first one's that failed.
    error: str | None


def beside_long_prompts(requests: Sequence[ServedTimes], long: Sequence[ServedTimes]) -> LongPromptResult:
    """Divides the times between tokens: a long prompt comes in from its sending to its first token."""
    whole = [times for times in long if times.error is None and times.arrivals]
    spans = [(times.due_s, times.arrivals[0][0]) for times in whole]
    beside: list[float] = []
    others: list[float] = []
    for times in requests:
        for earlier, later in pairwise(at_s for at_s, _ in times.arrivals):
            is_beside = any(earlier < last and first < later for first, last in spans)
            (beside if is_beside else others).append(later - earlier)
    return LongPromptResult(
        num_prompts=len(whole),
        first_token_ms=percentiles_ms([times.first_token_s for times in whole] or [0.0], *PERCENTS),
        gap_ms=percentiles_ms(beside or [0.0], *PERCENTS),
        other_gap_ms=percentiles_ms(others or [0.0], *PERCENTS),
        error=next((times.error for times in long if times.error is not None), None),
    )


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
        first_token_ms=percentiles_ms([times.first_token_s for times in whole] or [0.0], *PERCENTS),
        gap_ms=percentiles_ms(gaps or [0.0], *PERCENTS),
        goodput_per_s=sum(map(level.is_met, whole)) / seconds if seconds else 0.0,
        first_error=errors[0] if errors else None,
    )
