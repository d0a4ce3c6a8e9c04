"""`punica-serve simulate CONFIG`: runs the scheduler with simulated GPUs, in simulated time."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, make_console
from punica_serve.cli.options import KeyOption
from punica_serve.cli.shipped_configs import find_config
from punica_serve.cli.simulate_failures import EXIT_FAILED, print_failures
from punica_serve.cli.simulate_files import check_pictures, write_files
from punica_serve.cli.text_tables import figures_table
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
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


def command(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            callback=find_config,
            help="A config file with `simulation.arrivals`, or a shipped one's name.",
        ),
    ],
    out: OutOption = DEFAULT_OUT,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also run other placements, and without migration and consolidation.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of arrivals, lengths and popularity.")] = 1,
    profile: Annotated[str | None, typer.Option(help="Performance profile instead of the config's.")] = None,
    rate_scale: Annotated[
        float, typer.Option(min=0.001, max=1000, help="How many times as many requests arrive in a second.")
    ] = 1.0,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A day of the Azure Functions trace of 2019, whose arrivals are replayed."),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(metavar="URL[,URL...]", help="Also run against the live cluster of these frontends, to compare."),
    ] = None,
    key: KeyOption = None,
) -> None:
    """Run the scheduler with simulated GPUs; write a picture, a timeline and a summary.

    Exit code 1: requests failed, or one of the paper's claims does not hold for this config and is printed with FAIL.
    """
    from punica_scheduler.simulator.run import ABLATIONS, ablated, arrivals_for
    from punica_serve.cli.simulate_live import compare_live, look_first
    from punica_serve.config.cluster import load_config
    from punica_serve.errors import ConfigError

    cluster = load_config(config)
    if profile is not None:
        cluster = _with_profile(cluster, profile)
    check_folder(out)
    check_pictures()
    console = make_console()
    if live is not None:
        if ablations:
            raise ConfigError(
                "`--live` can't be combined with `--ablations`: a running cluster can't change its policies",
                param="live",
            )
        urls = [url.strip() for url in live.split(",")]
        gpus = look_first(cluster, urls, key)
        arrivals = _announced(arrivals_for(cluster, seed, rate_scale=rate_scale, trace=trace), console)
        compare_live(cluster, gpus, arrivals, urls, key, name=config.stem, out=out, console=console)
        return
    arrivals = _announced(arrivals_for(cluster, seed, rate_scale=rate_scale, trace=trace), console)
    variants = {"as configured": cluster}
    if ablations:
        variants |= {name: ablated(cluster, name) for name in ABLATIONS}
    results = _simulate(variants, arrivals, console)
    _leave(results, config.stem, out, console)


def _with_profile(config: "ClusterConfig", profile: str) -> "ClusterConfig":
    """The config with another performance profile: a shipped one's name, or a file in the current folder."""
    simulation = config.simulation.model_copy(update={"profile": profile})
    return config.model_copy(update={"simulation": simulation})


def _announced(arrivals: "Arrivals", console: "Console") -> "Arrivals":
    console.print(f"{len(arrivals):,} requests in {arrivals.times_s[-1]:,.0f} s", highlight=False)
    return arrivals


def _simulate(variants: "dict[str, ClusterConfig]", arrivals: "Arrivals", console: "Console") -> "dict[str, Result]":
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        return {name: _simulate_one(name, config, arrivals, progress) for name, config in variants.items()}


def _simulate_one(name: str, config: "ClusterConfig", arrivals: "Arrivals", progress: "Progress") -> "Result":
    from punica_scheduler.simulator.run import simulate

    task = progress.add_task(name, total=arrivals.times_s[-1])
    return simulate(config, arrivals, lambda now_s: progress.update(task, completed=now_s))


def _leave(results: "dict[str, Result]", name: str, out: Path, console: "Console") -> None:
    """Prints the summary and the checks, and writes the files.

    Raises typer.Exit(1), after writing the files, if requests failed or one of the paper's claims does not hold.
    """
    from punica_scheduler.simulator.summary import checks

    first = next(iter(results.values()))
    console.print(_table(results))
    for variant, result in results.items():
        print_failures(variant, result.failures, console)
    if first.summary.num_tokens:
        which = "every stream that did not fail" if first.failures else "every stream"
        console.print(f"{first.summary.num_tokens:,} tokens: {which} came out exactly once", highlight=False)
    found = checks(first.summary)
    for check in found:
        verdict = "pass" if check.holds else "FAIL"
        console.print(f"{verdict}  {check.claim}: {check.seen}", soft_wrap=True, highlight=False)
    write_files(
        {variant: result.summary for variant, result in results.items()},
        {name: first.timeline},
        {"simulated": first.timeline},
        out / name,
        name,
        console,
    )
    if any(result.failures for result in results.values()) or not all(check.holds for check in found):
        raise typer.Exit(EXIT_FAILED)


def _table(results: "dict[str, Result]") -> "Table":
    rows = ((title, [shown(result.summary) for result in results.values()]) for title, shown in _ROWS)
    return figures_table(results, rows)
