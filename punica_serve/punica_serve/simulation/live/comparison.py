"""Compares a live run with its simulation in the same figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from punica_serve.protocol import Slo
from punica_serve.simulation.attainment import RequestTimes, attainment
from punica_serve.simulation.live.client import MAX_DRAIN_S, ReplayedStream
from punica_serve.simulation.live.watch import Sample
from punica_serve.simulation.timeline import Timeline

#: A GPU with a lower mean batch size counts as idle.
_IDLE_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """The figures that are compared. Times are simulated seconds."""

    tokens_per_s: float
    highest_tokens_per_s: float
    #: Share of all GPUs and intervals that were busy.
    busy_share: float
    #: Mean over the busy GPUs and intervals.
    busy_batch_size: float
    first_token_p50_s: float
    first_token_p99_s: float
    time_per_token_mean_s: float
    time_per_token_p99_s: float
    #: Share of the finished requests all of whose promises were kept; None if nothing was promised.
    promises_kept: float | None
    migrations: int
    consolidations: int
    num_failed: int


def figures_of(
    timeline: Timeline, counters: Mapping[str, int], times: RequestTimes, slos: Sequence[Slo], *, num_failed: int
) -> LiveFigures:
    """Figures from a timeline, the scheduler's ``counters`` over the run, and the requests' times and promises."""
    p50, p99 = np.percentile(times.first_token_s, (50, 99)) if len(times.first_token_s) else (0.0, 0.0)
    per_token_s = times.time_per_token_s[~np.isnan(times.time_per_token_s)]
    attained = attainment(times, slos)
    batch_sizes = np.array(list(timeline.batch_sizes.values()))
    busy = batch_sizes[batch_sizes >= _IDLE_BELOW]
    return LiveFigures(
        tokens_per_s=float(np.mean(timeline.tokens_per_s)),
        highest_tokens_per_s=max(timeline.tokens_per_s),
        busy_share=busy.size / batch_sizes.size,
        busy_batch_size=float(busy.mean()) if busy.size else 0.0,
        first_token_p50_s=float(p50),
        first_token_p99_s=float(p99),
        time_per_token_mean_s=float(per_token_s.mean()) if len(per_token_s) else 0.0,
        time_per_token_p99_s=float(np.percentile(per_token_s, 99)) if len(per_token_s) else 0.0,
        promises_kept=attained.both if attained else None,
        migrations=counters["migrations"],
        consolidations=counters["consolidations"],
        num_failed=num_failed,
    )


def live_figures(
    timeline: Timeline, samples: Sequence[Sample], streams: Sequence[ReplayedStream], slos: Sequence[Slo]
) -> LiveFigures:
    """Figures of an observed replay; ``slos`` has one for each request."""
    first, last = samples[0].counters, samples[-1].counters
    counters = {name: count - first.get(name, 0) for name, count in last.items()}
    return figures_of(timeline, counters, times_of(streams), slos, num_failed=failures_of(streams).total())


def times_of(streams: Sequence[ReplayedStream]) -> RequestTimes:
    """The times of those that ended without a failure."""
    whole = [
        (number, stream.sent_s, stream.first_token_s, stream.last_token_s, stream.num_tokens)
        for number, stream in enumerate(streams)
        if stream.error is None and stream.ended_s is not None and stream.first_token_s is not None
    ]
    numbers, sent_s, first_s, last_s, num_tokens = np.array(whole, dtype=np.float64).reshape(-1, 5).T
    per_token_s = np.full(len(numbers), np.nan)
    np.divide(last_s - first_s, num_tokens - 1, out=per_token_s, where=num_tokens > 1)
    return RequestTimes(numbers.astype(np.int64), first_s - sent_s, per_token_s)


def failures_of(streams: Sequence[ReplayedStream]) -> Counter[str]:
    """Reasons for failures, with counts. A stream without an end has failed too."""
    no_end = f"it did not end within {MAX_DRAIN_S:g} s of the last request"
    return Counter(stream.error or no_end for stream in streams if stream.error is not None or stream.ended_s is None)


def ratio(live: float, simulated: float) -> str:
    """The live figure divided by the simulated one, if that is not 0."""
    return f"{live / simulated:.2f}" if simulated else "-"


#: Title and format of each figure, in the order of a table.
ROWS: Mapping[str, tuple[str, str]] = {
    "tokens_per_s": ("tokens per second", ",.0f"),
    "highest_tokens_per_s": ("tokens per second, highest interval", ",.0f"),
    "busy_share": ("GPUs with something to run", ".1%"),
    "busy_batch_size": ("batch size of a busy GPU", ".1f"),
    "first_token_p50_s": ("first token, p50 s", ".3f"),
    "first_token_p99_s": ("first token, p99 s", ".3f"),
    "time_per_token_mean_s": ("time per token, mean s", ".4f"),
    "time_per_token_p99_s": ("time per token, p99 s", ".4f"),
    "promises_kept": ("promises kept", ".1%"),
    "migrations": ("migrations", ",d"),
    "consolidations": ("consolidations", ",d"),
    "num_failed": ("requests that failed", ",d"),
}
