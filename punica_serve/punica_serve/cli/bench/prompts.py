"""`punica-serve bench prompts`."""

from enum import StrEnum
from functools import partial
from pathlib import Path
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

_LENGTHS = (512, 2048, 4000)


class AttentionOption(StrEnum):
    """The values of `--attention`: those of `engine.attention`."""

    AUTO = "auto"
    TRITON = "triton"
    FLASHINFER = "flashinfer"


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    out: OutOption = DEFAULT_OUT,
    tokens: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1_000_000, help="Lengths of prompts, repeatable; default 512, 2048 and 4000."),
    ] = None,
    attention: Annotated[
        list[AttentionOption] | None,
        typer.Option(help="Backends to compare, repeatable; default triton and flashinfer."),
    ] = None,
    prefill_budget: Annotated[int, typer.Option(min=1, max=1_000_000, help="Prompt tokens in one step.")] = 512,
    others: Annotated[int, typer.Option(min=0, max=1_024, help="Requests that decode meanwhile.")] = 0,
    together: Annotated[int, typer.Option(min=1, max=1_024, help="Prompts that come at once, prefilled together.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, max=1_000, help="Prompts of each length; results are the least.")] = 4,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the steps' times for `engine.attention_times`, in YAML."),
    ] = None,
) -> None:
    """Measure the time from a prompt to its first token by attention backend, the engines in turn."""
    from punica_serve.bench.prompts import PromptSettings, run
    from punica_serve.errors import ConfigError
    from punica_serve.process.outputs import check_file

    lengths = tuple(sorted(set(tokens or _LENGTHS)))
    backends = tuple(
        dict.fromkeys(name.value for name in attention or (AttentionOption.TRITON, AttentionOption.FLASHINFER))
    )
    if table is not None:
        if not {"triton", "flashinfer"} <= set(backends):
            raise ConfigError("`--table` compares triton with flashinfer; give both as `--attention`", param="table")
        check_file(table, "--table")
    settings = PromptSettings(lengths, backends, prefill_budget, others, repeats, together)
    measure(partial(run, subject_of(config, shape, device), settings, table=table), out, REFRESH_PER_S)
