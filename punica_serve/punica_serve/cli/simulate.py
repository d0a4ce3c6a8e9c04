"""`punica-serve simulate CONFIG`: runs the scheduler with simulated GPUs, in simulated time."""

from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, make_console
from punica_serve.cli.options import KeyOption
from punica_serve.cli.simulate_failures import exit_if_failed, print_checks, print_failures
from punica_serve.cli.simulate_files import check_pictures, write_files
from punica_serve.cli.simulate_options import (
    AblationsOption,
    CheckOption,
    CompareOption,
    ConfigArgument,
    LiveOption,
    ProfileOption,
    RateScaleOption,
    SeedOption,
    SloScalesOption,
    TraceOption,
    check_combination,
)
from punica_serve.cli.simulate_runs import run_all, summary_table
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from rich.console import Console

    from punica_scheduler.simulator.run import Result
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.simulation.arrivals import Arrivals


def command(
    config: ConfigArgument,
    out: OutOption = DEFAULT_OUT,
    ablations: AblationsOption = False,
    compare: CompareOption = None,
    slo_scales: SloScalesOption = None,
    seed: SeedOption = 1,
    profile: ProfileOption = None,
    rate_scale: RateScaleOption = 1.0,
    trace: TraceOption = None,
    live: LiveOption = None,
    key: KeyOption = None,
    check: CheckOption = False,
) -> None:
    """Run the scheduler with simulated GPUs; write pictures, tables and a summary.

    A config with `simulation.compare`, or `--compare`, has several placement policies run. A claim of the paper or a
    goal of the config (`simulation.goals`) that does not hold is printed with FAIL.
    Exit code 1: requests failed, or, with `--check`, a claim or a goal does not hold.
    """
    from punica_scheduler.simulator.run import arrivals_for
    from punica_serve.cli.simulate_compare import compare_policies, policies_of, scales_of
    from punica_serve.cli.simulate_live import compare_live, look_first

    check_combination(ablations=ablations, compare=compare, slo_scales=slo_scales, live=live, check=check)
    cluster = _loaded(config, profile)
    scales = scales_of(slo_scales)
    policies = () if ablations else policies_of(cluster, compare, scales)
    check_folder(out)
    check_pictures()
    console, name = make_console(), config.stem
    urls = [url.strip() for url in live.split(",")] if live is not None else []
    gpus = look_first(cluster, urls, key) if urls else []
    arrivals = arrivals_for(cluster, seed, rate_scale=rate_scale, trace=trace)
    console.print(f"{len(arrivals):,} requests in {arrivals.times_s[-1]:,.0f} s", highlight=False)
    _print_mismatch(cluster, console)
    if urls:
        compare_live(cluster, gpus, arrivals, urls, key, name=name, out=out, console=console)
    elif policies:
        compare_policies(cluster, policies, scales, arrivals, name=name, out=out, console=console, check=check)
    else:
        _run_variants(_variants(cluster, ablations), arrivals, name=name, out=out, console=console, check=check)


def _loaded(path: Path, profile: str | None) -> "ClusterConfig":
    """The config, with another performance profile if one is given: a shipped one's name, or a file in the current
    folder.
    """
    from punica_serve.config.cluster import load_config

    config = load_config(path)
    if profile is None:
        return config
    return config.model_copy(update={"simulation": config.simulation.model_copy(update={"profile": profile})})


def _print_mismatch(config: "ClusterConfig", console: "Console") -> None:
    """Says so where the simulated times were measured for another model: the simulation is allowed nevertheless."""
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.performance.profile import load_profile

    model = read_model_config(config.engine.model)
    if mismatch := load_profile(config.simulation.profile).mismatch(model, config.engine.dtype_of(model)):
        line = f"the times are not those of this model: {mismatch}; `punica-serve profile` measures others"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _variants(config: "ClusterConfig", ablations: bool) -> "dict[str, ClusterConfig]":
    """The config by itself, or also with parts of the scheduler exchanged."""
    from punica_scheduler.simulator.variants import ABLATIONS, ablated

    names = ABLATIONS if ablations else ()
    return {"as configured": config, **{name: ablated(config, name) for name in names}}


def _run_variants(
    variants: "dict[str, ClusterConfig]", arrivals: "Arrivals", *, name: str, out: Path, console: "Console", check: bool
) -> None:
    """Runs the variants, prints a summary and the paper's claims about the first, and writes the files.

    Raises typer.Exit(1), after writing the files, if requests failed or, with ``check``, a claim does not hold.
    """
    from punica_scheduler.simulator.summary import checks

    results = run_all(variants, arrivals, console)
    first = next(iter(results.values()))
    _print_summary(results, console)
    claims = checks(first.summary)
    print_checks(claims, console)
    write_files(
        {variant: result.summary for variant, result in results.items()},
        {name: first.timeline},
        {"simulated": first.timeline},
        out / name,
        name,
        console,
    )
    exit_if_failed(any(result.failures for result in results.values()), claims if check else ())


def _print_summary(results: "dict[str, Result]", console: "Console") -> None:
    first = next(iter(results.values()))
    console.print(summary_table(results))
    for variant, result in results.items():
        print_failures(variant, result.failures, console)
    if first.summary.num_tokens:
        which = "every stream that did not fail" if first.failures else "every stream"
        console.print(f"{first.summary.num_tokens:,} tokens: {which} came out exactly once", highlight=False)
