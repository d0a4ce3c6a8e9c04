"""`punica-serve bench start`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import EngineConfigOption, EngineDeviceOption, ShapeOption, engine_of
from punica_serve.cli.bench.prompts import AttentionOption


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=2, max=64, metavar="SIZE", help="Devices of the group.")
    ] = 2,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Starts of each; results are medians.")] = 3,
    timeout: Annotated[
        float, typer.Option(min=1, max=86_400, metavar="SECONDS", help="That one start and its end may take.")
    ] = 900.0,
    attention: Annotated[
        AttentionOption | None,
        typer.Option(help="Which kernels serve prefills, instead of `engine.attention`."),
    ] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure how long a group takes to start, beside one device: processes in turn, from their beginning on.

    A start of each comes before, which compiles kernels, FlashInfer's too with `--attention flashinfer`. The progress
    bar names the phase that each rank is in.
    """
    from punica_serve.bench.start.start_run import StartSettings, run

    engine, first = engine_of(config, shape, device)
    if attention is not None:
        engine = engine.model_copy(update={"attention": attention.value})
    measure(partial(run, StartSettings(engine, first, tensor_parallel, rounds, timeout)), out)
