"""`punica-serve bench coldstart-idle`."""

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
from punica_serve.process.outputs import check_folder


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    modes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Modes of `engine.cold_start`; all by default.")
    ] = None,
    sources: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="NAME,...", help="Where cold adapters are: host, packed, files; all by default."
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None, typer.Option("--rank", min=1, max=128, help="Ranks of the adapters; default 16 and 64.")
    ] = None,
    prompts: Annotated[
        list[int] | None,
        typer.Option("--prompt-tokens", min=1, max=1_000_000, help="Tokens of prompts; default 20 and 128."),
    ] = None,
    arrivals: Annotated[int, typer.Option(min=1, max=10_000, help="Requests of each stream.")] = 6,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for temporary adapter files.")] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure the first token on an idle engine: with the adapter on the device, and with it somewhere else."""
    from punica_serve.bench.coldstart_idle.idle_report import measure_all
    from punica_serve.bench.coldstart_idle.idle_run import IdleSettings, parse_modes, parse_sources

    if folder is not None:
        check_folder(folder, "--folder")
    settings = IdleSettings(
        modes=parse_modes(modes),
        sources=parse_sources(sources),
        ranks=tuple(sorted(set(ranks or (16, 64)))),
        prompts=tuple(sorted(set(prompts or (20, 128)))),
        num_arrivals=arrivals,
        folder=folder,
    )
    measure(partial(measure_all, subject_of(config, shape, device), settings), out, REFRESH_PER_S)
