"""A live run and its simulation in the same figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from punica_serve.replay.client import MAX_DRAIN_S, ReplayedStream
from punica_serve.replay.watch import Look
from punica_serve.simulation.timeline import Timeline

#: A mean batch size below it is an idle GPU.
_IDLE_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is compared. Times are simulated seconds."""

    tokens_per_s: float
    highest_tokens_per_s: float
    #: Of all GPUs and intervals, the share in which something ran.
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
    """``counters`` are the scheduler's, over the run."""
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


def live_figures(timeline: Timeline, looks: Sequence[Look], streams: Sequence[ReplayedStream]) -> Figures:
    """Of a replay that was watched."""
    first, last = looks[0].counters, looks[-1].counters
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
    """Why requests failed, and how many. A stream that has no end has failed, too."""
    no_end = f"no end came within {MAX_DRAIN_S:g} s of the last request"
    return Counter(stream.error or no_end for stream in streams if stream.error is not None or stream.ended_s is None)


def ratio(live: float, simulated: float) -> str:
    """The live figure over the simulated one, where there is one."""
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
