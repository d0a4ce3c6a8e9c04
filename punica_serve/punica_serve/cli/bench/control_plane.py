"""`punica-serve bench control-plane`."""

from dataclasses import replace
from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure

#: A fleet that any machine can feed, for as long as a test may take: it shows that everything works, not how fast.
_QUICK_GPUS, _QUICK_SECONDS, _QUICK_QUEUED = 16, 1.0, 2_000


def command(
    gpus: Annotated[int, typer.Option(min=1, max=100_000, help="GPUs of the fleet, eight to a host.")] = 512,
    batch: Annotated[int, typer.Option(min=1, max=1_024, help="Requests on each GPU.")] = 32,
    tokens_per_s: Annotated[
        float, typer.Option(min=1.0, max=1e9, help="Tokens per second, all GPUs together.")
    ] = 300_000,
    frontends: Annotated[int, typer.Option(min=1, max=64, help="Frontends, which share the requests.")] = 2,
    seconds: Annotated[
        float, typer.Option(min=0.5, max=86_400, help="Measured seconds, for each of the two loads.")
    ] = 10.0,
    quick: Annotated[
        bool, typer.Option(help="A small fleet for a second: checks that it works, not how fast.")
    ] = False,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure the scheduler's cost per token, and a token's latency through it. Needs no GPU."""
    from punica_serve.bench.control_plane.run import run
    from punica_serve.bench.control_plane.settings import ControlPlaneSettings

    settings = ControlPlaneSettings(gpus, batch, tokens_per_s, frontends, seconds)
    if quick:
        settings = replace(
            settings,
            num_gpus=_QUICK_GPUS,
            tokens_per_s=tokens_per_s * _QUICK_GPUS / gpus,
            seconds=_QUICK_SECONDS,
            settling_s=_QUICK_SECONDS,
            answer_tokens=(10, 30),
            num_queued=_QUICK_QUEUED,
            placement_sizes=(_QUICK_GPUS, 2 * _QUICK_GPUS),
            num_placements=_QUICK_QUEUED // 10,
        )
    measure(partial(run, settings), out, refresh_per_s=2.0)
