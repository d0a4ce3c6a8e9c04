"""`punica-serve bench moves`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    ShapeOption,
    subject_of,
)
from punica_serve.cli.bench.prompts import AttentionOption


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    out: OutOption = DEFAULT_OUT,
    attention: Annotated[
        list[AttentionOption] | None,
        typer.Option(help="Backends to move between, repeatable; default triton and flashinfer."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="Requests.")] = 64,
    length: Annotated[
        tuple[int, int], typer.Option(metavar="PROMPT OUTPUT", help="Length of every prompt and answer in tokens.")
    ] = (512, 128),
    moves: Annotated[int, typer.Option(min=1, max=1_000, help="Moves of each request, spread over its answer.")] = 3,
) -> None:
    """Measure how often a request that moves between attention backends goes on with other tokens (near-ties)."""
    from punica_serve.bench.moves import MoveSettings, run
    from punica_serve.cli.bench.textgen import check_length
    from punica_serve.errors import ConfigError

    subject = subject_of(config, shape, device)
    check_length(length, subject.config.context_of(subject.model))
    if moves >= length[1]:
        message = f"`--moves` is {moves}, and answers of {length[1]} tokens have fewer places for moves; take fewer"
        raise ConfigError(message, param="moves")
    backends = tuple(
        dict.fromkeys(name.value for name in attention or (AttentionOption.TRITON, AttentionOption.FLASHINFER))
    )
    measure(partial(run, subject, MoveSettings(backends, requests, *length, moves)), out, REFRESH_PER_S)
