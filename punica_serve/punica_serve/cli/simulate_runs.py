"""Runs of `punica-serve simulate`, their progress, and their figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from punica_serve.cli.text_tables import figures_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from punica_scheduler.simulator.run import Result
    from punica_scheduler.simulator.summary import Summary
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.simulation.arrivals import Arrivals

_Row = tuple[str, Callable[["Summary"], str]]


def _kept(promise: str) -> Callable[["Summary"], str]:
    """Shows the share of an Attainment's field."""
    return lambda summary: f"{getattr(summary.attained, promise):.2%}" if summary.attained else "-"


_ROWS: tuple[_Row, ...] = (
    ("GPU time in steps", lambda summary: f"{summary.busy_share:.1%}"),
    ("of it in full batches", lambda summary: f"{summary.full_share:.1%}"),
    ("GPU time in steps, s", lambda summary: f"{summary.gpu_time_s:,.0f}"),
    ("GPUs that could be released", lambda summary: f"{summary.num_unused_gpus:,}"),
    ("mean batch size", lambda summary: f"{summary.mean_batch_size:.1f}"),
    ("idle GPU time that could be released", lambda summary: f"{summary.releasable_share:.1%}"),
    ("tokens per second in steps", lambda summary: f"{summary.tokens_per_busy_s:,.0f}"),
    ("evictions", lambda summary: f"{summary.evictions:,}"),
    ("migrations", lambda summary: f"{summary.migrations:,}"),
    ("consolidations", lambda summary: f"{summary.consolidations:,}"),
    ("queue delay, mean s", lambda summary: f"{summary.queue_delay_mean_s:.3f}"),
    ("queue delay, p50 s", lambda summary: f"{summary.queue_delay_p50_s:.3f}"),
    ("queue delay, p99 s", lambda summary: f"{summary.queue_delay_p99_s:.3f}"),
    ("first token, p50 s", lambda summary: f"{summary.first_token_p50_s:.3f}"),
    ("first token, p99 s", lambda summary: f"{summary.first_token_p99_s:.3f}"),
    ("time per token, mean ms", lambda summary: f"{1e3 * summary.time_per_token_mean_s:.1f}"),
    ("time per token, p50 ms", lambda summary: f"{1e3 * summary.time_per_token_p50_s:.1f}"),
    ("time per token, p99 ms", lambda summary: f"{1e3 * summary.time_per_token_p99_s:.1f}"),
    ("promises kept: first token", _kept("first_token")),
    ("promises kept: time per token", _kept("time_per_token")),
    ("promises kept: both", _kept("both")),
    ("requests that failed", lambda summary: f"{summary.num_failed:,}"),
)


def run_all(variants: "Mapping[str, ClusterConfig]", arrivals: "Arrivals", console: "Console") -> "dict[str, Result]":
    """The results of each, and meanwhile their progress; one process a core."""
    from punica_scheduler.simulator.parallel import simulate_all
    from punica_serve.cli.progress_lines import shown_progress

    with shown_progress(console) as progress:
        tasks = {name: progress.add_task(name, total=arrivals.times_s[-1]) for name in variants}
        return simulate_all(variants, arrivals, lambda name, now_s: progress.update(tasks[name], completed=now_s))


def summary_table(results: "Mapping[str, Result]", more: Sequence[tuple[str, Sequence[str]]] = ()) -> "Table":
    """A column for each result; ``more`` are rows above the usual ones."""
    rows = [(title, [shown(result.summary) for result in results.values()]) for title, shown in _ROWS]
    return figures_table(results, [*more, *rows])
