"""Compares a live run with its simulation in the same figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from punica_serve.simulation.live.client import MAX_DRAIN_S, ReplayedStream
from punica_serve.simulation.live.watch import Sample
from punica_serve.simulation.timeline import Timeline

#: A GPU with a lower mean batch size counts as idle.
_IDLE_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures that are compared. Times are simulated seconds."""

    tokens_per_s: float
    highest_tokens_per_s: float
    #: Share of all GPUs and intervals that were busy.
    busy_share: float
    #: Mean over the busy GPUs and intervals.
    busy_batch_size: float
    first_token_p50_s: float
    first_token_p99_s: float
    migrations: int
    consolidations: int
    num_failed: int


def figures_of(
    timeline: Timeline,
    counters: Mapping[str, int],
    *,
    first_token_p50_s: float,
    first_token_p99_s: float,
    num_failed: int,
) -> Figures:
    """Figures from a timeline and from the scheduler's ``counters`` over the run."""
    batch_sizes = np.array(list(timeline.batch_sizes.values()))
    busy = batch_sizes[batch_sizes >= _IDLE_BELOW]
    return Figures(
        tokens_per_s=float(np.mean(timeline.tokens_per_s)),
        highest_tokens_per_s=max(timeline.tokens_per_s),
        busy_share=busy.size / batch_sizes.size,
        busy_batch_size=float(busy.mean()) if busy.size else 0.0,
        first_token_p50_s=first_token_p50_s,
        first_token_p99_s=first_token_p99_s,
        migrations=counters["migrations"],
        consolidations=counters["consolidations"],
        num_failed=num_failed,
    )


def live_figures(timeline: Timeline, samples: Sequence[Sample], streams: Sequence[ReplayedStream]) -> Figures:
    """Figures of an observed replay."""
    first, last = samples[0].counters, samples[-1].counters
    waits_s = [stream.first_token_s - stream.sent_s for stream in streams if stream.first_token_s is not None]
    p50, p99 = np.percentile(waits_s, (50, 99)) if waits_s else (0.0, 0.0)
    return figures_of(
        timeline,
        {name: count - first.get(name, 0) for name, count in last.items()},
        first_token_p50_s=float(p50),
        first_token_p99_s=float(p99),
        num_failed=failures_of(streams).total(),
    )


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
    "migrations": ("migrations", ",d"),
    "consolidations": ("consolidations", ",d"),
    "num_failed": ("requests that failed", ",d"),
}
