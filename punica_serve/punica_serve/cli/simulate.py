"""`punica-serve simulate CONFIG`: runs the scheduler with simulated GPUs, in simulated time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, make_console
from punica_serve.cli.options import KeyOption
from punica_serve.cli.shipped_configs import find_config
from punica_serve.cli.simulate_failures import EXIT_FAILED, print_checks, print_failures
from punica_serve.cli.simulate_files import check_pictures, write_files
from punica_serve.cli.simulate_runs import run_all, summary_table
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from rich.console import Console

    from punica_scheduler.simulator.run import Result
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.simulation.arrivals import Arrivals


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
    compare: Annotated[
        str | None,
        typer.Option(metavar="POLICY[,POLICY...]", help="Compare placement policies instead of the config's."),
    ] = None,
    slo_scales: Annotated[
        str | None,
        typer.Option(
            metavar="X[,X...]", help="Also promise X times the unloaded time per token, to policy after policy."
        ),
    ] = None,
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
    """Run the scheduler with simulated GPUs; write pictures, tables and a summary.

    A config with `simulation.compare`, or `--compare`, has several placement policies run.
    Exit code 1: requests failed, or a claim of the paper or a goal of the config (`simulation.goals`) does not hold and
    is printed with FAIL.
    """
    from punica_scheduler.simulator.run import arrivals_for
    from punica_scheduler.simulator.variants import ABLATIONS, ablated
    from punica_serve.cli.simulate_compare import compare_policies, policies_of, scales_of
    from punica_serve.cli.simulate_live import compare_live, look_first
    from punica_serve.config.cluster import load_config
    from punica_serve.errors import ConfigError

    cluster = load_config(config)
    if profile is not None:
        cluster = _with_profile(cluster, profile)
    scales = scales_of(slo_scales)
    policies = () if ablations else policies_of(cluster, compare, scales)
    if ablations and (compare or scales):
        raise ConfigError("`--ablations` can't be combined with `--compare` and `--slo-scales`", param="ablations")
    check_folder(out)
    check_pictures()
    console = make_console()
    if live is not None:
        for option, is_given in (("--ablations", ablations), ("--compare", compare), ("--slo-scales", slo_scales)):
            if is_given:
                message = f"`--live` can't be combined with `{option}`: a running cluster can't change its policies"
                raise ConfigError(message, param="live")
        urls = [url.strip() for url in live.split(",")]
        gpus = look_first(cluster, urls, key)
        arrivals = _announced(arrivals_for(cluster, seed, rate_scale=rate_scale, trace=trace), console)
        compare_live(cluster, gpus, arrivals, urls, key, name=config.stem, out=out, console=console)
        return
    arrivals = _announced(arrivals_for(cluster, seed, rate_scale=rate_scale, trace=trace), console)
    if policies:
        compare_policies(cluster, policies, scales, arrivals, name=config.stem, out=out, console=console)
        return
    variants = {"as configured": cluster}
    if ablations:
        variants |= {name: ablated(cluster, name) for name in ABLATIONS}
    results = run_all(variants, arrivals, console)
    _leave(results, config.stem, out, console)


def _with_profile(config: "ClusterConfig", profile: str) -> "ClusterConfig":
    """The config with another performance profile: a shipped one's name, or a file in the current folder."""
    simulation = config.simulation.model_copy(update={"profile": profile})
    return config.model_copy(update={"simulation": simulation})


def _announced(arrivals: "Arrivals", console: "Console") -> "Arrivals":
    console.print(f"{len(arrivals):,} requests in {arrivals.times_s[-1]:,.0f} s", highlight=False)
    return arrivals


def _leave(results: "dict[str, Result]", name: str, out: Path, console: "Console") -> None:
    """Prints the summary and the checks, and writes the files.

    Raises typer.Exit(1), after writing the files, if requests failed or one of the paper's claims does not hold.
    """
    from punica_scheduler.simulator.summary import checks

    first = next(iter(results.values()))
    console.print(summary_table(results))
    for variant, result in results.items():
        print_failures(variant, result.failures, console)
    if first.summary.num_tokens:
        which = "every stream that did not fail" if first.failures else "every stream"
        console.print(f"{first.summary.num_tokens:,} tokens: {which} came out exactly once", highlight=False)
    found = checks(first.summary)
    print_checks(found, console)
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
