"""The options of `punica-serve simulate`, and which of them exclude each other."""

from pathlib import Path
from typing import Annotated

import typer

from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError

ConfigArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        callback=find_config,
        help="A config with `simulation.arrivals`, or a shipped one's name.",
    ),
]
AblationsOption = Annotated[
    bool, typer.Option("--ablations", help="Also run other placements, and without migration and consolidation.")
]
CompareOption = Annotated[
    str | None,
    typer.Option(metavar="POLICY[,POLICY...]", help="Compare placement policies instead of the config's."),
]
SloScalesOption = Annotated[
    str | None,
    typer.Option(metavar="X[,X...]", help="Also promise X times the unloaded time per token, to policy after policy."),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed of arrivals, lengths and popularity.")]
ProfileOption = Annotated[str | None, typer.Option(help="Performance profile instead of the config's.")]
RateScaleOption = Annotated[
    float, typer.Option(min=0.001, max=1000, help="How many times as many requests arrive in a second.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A day of the Azure Functions trace of 2019, whose arrivals are replayed."),
]
LiveOption = Annotated[
    str | None,
    typer.Option(metavar="URL[,URL...]", help="Also run against the live cluster of these frontends, to compare."),
]
CheckOption = Annotated[
    bool, typer.Option("--check", help="End with code 1 if a claim of the paper or a goal of the config does not hold.")
]


def check_combination(
    *, ablations: bool, compare: str | None, slo_scales: str | None, live: str | None, check: bool
) -> None:
    """Raises ConfigError for options that exclude each other."""
    if ablations and (compare is not None or slo_scales is not None):
        raise ConfigError("`--ablations` can't be combined with `--compare` and `--slo-scales`", param="ablations")
    if live is None:
        return
    policies = {"--ablations": ablations, "--compare": compare is not None, "--slo-scales": slo_scales is not None}
    if option := next((option for option, is_given in policies.items() if is_given), None):
        message = f"`--live` can't be combined with `{option}`: a running cluster can't change its policies"
        raise ConfigError(message, param="live")
    if check:
        raise ConfigError("`--live` can't be combined with `--check`: it has no claims and no goals", param="live")
