"""`punica-serve simulate` with several placement policies: the same arrivals for each, and promises to keep."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from punica_serve.cli.simulate_failures import exit_if_failed, print_checks, print_failures
from punica_serve.cli.simulate_files import Writer, write_each, write_json
from punica_serve.cli.simulate_runs import run_all, summary_table
from punica_serve.cli.text_tables import figures_table
from punica_serve.config.placement_name import SHIPPED_PLACEMENTS, PlacementName, label_of, placement_name
from punica_serve.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from punica_scheduler.simulator.comparison_pictures import Curves
    from punica_scheduler.simulator.run import Result
    from punica_scheduler.simulator.summary import Summary
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.simulation.arrivals import Arrivals


def policies_of(config: "ClusterConfig", option: str | None, scales: Sequence[float]) -> tuple[PlacementName, ...]:
    """The policies to compare, by ``--compare`` or else the config; with ``scales`` at least its own.

    Raises ConfigError for a policy that there is not, and for two of your own with the same class name.
    """
    if option is None:
        return config.simulation.compare or ((config.scheduler.placement,) if scales else ())
    names = tuple(dict.fromkeys(_named_policy(name.strip()) for name in option.split(",")))
    if twice := [name for name, count in Counter(map(label_of, names)).items() if count > 1]:
        raise ConfigError(f"`--compare`: two policies are called {twice[0]}; rename one", param="compare")
    return names


def _named_policy(text: str) -> PlacementName:
    try:
        return placement_name(text, Path.cwd())
    except ValueError:
        shipped = ", ".join(SHIPPED_PLACEMENTS)
        message = f"{text!r} is not a placement policy; there are {shipped}, and your own as FILE.py:CLASS"
        raise ConfigError(f"`--compare`: {message}", param="compare") from None


def scales_of(option: str | None) -> tuple[float, ...]:
    """The scales of ``--slo-scales``, ascending. Raises ConfigError for what is not a number above 0."""
    scales = set()
    for text in option.split(",") if option is not None else ():
        try:
            scale = float(text)
        except ValueError:
            scale = math.nan
        if not 0 < scale <= 1000:
            raise ConfigError(f"`--slo-scales`: {text!r} is not a number above 0, at most 1000", param="slo_scales")
        scales.add(scale)
    return tuple(sorted(scales))


def compare_policies(
    config: "ClusterConfig",
    policies: Sequence[PlacementName],
    scales: Sequence[float],
    arrivals: "Arrivals",
    *,
    name: str,
    out: Path,
    console: "Console",
    check: bool,
) -> None:
    """Runs the policies, prints a table, and writes summaries, distributions and pictures.

    A policy that does not look at promises runs once, and is judged by each of them. Raises typer.Exit(1), after
    writing the files, if requests failed or, with ``check``, a goal of the config was missed.
    """
    from punica_scheduler.simulator.goals import goal_checks
    from punica_scheduler.simulator.variants import depends_on_promises, with_policy, with_slo_scale

    variants: dict[str, ClusterConfig] = {label_of(policy): with_policy(config, policy) for policy in policies}
    scaled = {
        (policy, scale): with_slo_scale(variant, scale) for policy, variant in variants.items() for scale in scales
    }
    own = config.simulation.slo.scale
    more = {_named(*key): one for key, one in scaled.items() if key[1] != own and depends_on_promises(one)}
    runs = run_all({**variants, **more}, arrivals, console)
    results: dict[str, Result] = {policy: runs[policy] for policy in variants}
    console.print(_policies_table(results))
    for run, result in runs.items():
        print_failures(run, result.failures, console)
    writers = _policies_files(results, out, name)
    if scales:
        curves = _curves(results, runs, scaled, arrivals)
        console.print(_scales_table(curves))
        writers |= _scales_files(curves, out, name)
    summaries = {policy: result.summary for policy, result in results.items()}
    goals = goal_checks(config.simulation.goals.get(config.simulation.profile, {}), summaries)
    print_checks(goals, console)
    write_each(writers, console)
    exit_if_failed(any(result.failures for result in runs.values()), goals if check else ())


def _policies_files(results: "dict[str, Result]", out: Path, name: str) -> dict[Path, Writer]:
    from punica_scheduler.simulator.comparison import write_cdfs
    from punica_scheduler.simulator.comparison_pictures import draw_policies

    summaries = {policy: result.summary for policy, result in results.items()}
    return {
        out / f"{name}.json": partial(write_json, summaries),
        out / f"{name}-cdfs.csv": partial(write_cdfs, results),
        out / f"{name}.png": partial(draw_policies, results, title=name),
    }


def _scales_files(curves: "Curves", out: Path, name: str) -> dict[Path, Writer]:
    from punica_scheduler.simulator.comparison_pictures import draw_scales

    summaries = {
        _named(policy, scale): summary for policy, by_scale in curves.items() for scale, summary in by_scale.items()
    }
    return {
        out / f"{name}-slo-scales.json": partial(write_json, summaries),
        out / f"{name}-slo-scales.png": partial(draw_scales, curves, title=name),
    }


def _curves(
    results: "dict[str, Result]",
    runs: "dict[str, Result]",
    scaled: "dict[tuple[str, float], ClusterConfig]",
    arrivals: "Arrivals",
) -> "Curves":
    from punica_scheduler.simulator.run import judged, slos_of

    one_each = {scale: variant for (_, scale), variant in scaled.items()}
    slos = {scale: slos_of(variant, arrivals) for scale, variant in one_each.items()}
    curves: dict[str, dict[float, Summary]] = {policy: {} for policy in results}
    for policy, scale in scaled:
        own = runs.get(_named(policy, scale))
        curves[policy][scale] = (own or judged(results[policy], slos[scale])).summary
    return curves


def _named(policy: str, scale: float) -> str:
    return f"{policy}, {scale:g} x unloaded"


def _policies_table(results: "dict[str, Result]") -> "Table":
    from punica_scheduler.simulator.comparison import faster_by
    from punica_scheduler.simulator.goals import SPREADING

    summaries = {policy: result.summary for policy, result in results.items()}
    first, *others = summaries
    faster = ["-", *(f"{faster_by(summaries[first], summaries[other]):.1%}" for other in others)]
    rows = [(f"{first} is faster by", faster)]
    spread = summaries.get(SPREADING)
    if spread and spread.gpu_time_s:
        shares = [f"{summary.gpu_time_s / spread.gpu_time_s:.2f}" for summary in summaries.values()]
        rows.append((f"GPU time / that of {SPREADING}", shares))
    return summary_table(results, rows)


def _scales_table(curves: "Curves") -> "Table":
    """Promises kept and GPU time of each policy, a column for each scale."""
    scales = list(next(iter(curves.values())))
    rows = []
    for policy, by_scale in curves.items():
        kept = [f"{one.attained.both:.2%}" if one.attained else "-" for one in by_scale.values()]
        rows.append((f"{policy}: promises kept", kept))
        rows.append((f"{policy}: GPU time, s", [f"{one.gpu_time_s:,.0f}" for one in by_scale.values()]))
    return figures_table([f"{scale:g} x" for scale in scales], rows)
