"""`punica-serve bench kernels`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.bench.kernels.sections import BATCH_SIZES, HalfDtype, Section
from punica_serve.cli.bench.common import DEFAULT_DEVICE, DEFAULT_OUT, DeviceOption, OutOption, measure


def command(
    device: DeviceOption = DEFAULT_DEVICE,
    out: OutOption = DEFAULT_OUT,
    only: Annotated[list[Section] | None, typer.Option(help="Sections to run, repeatable; all by default.")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, max=65_536, help="Batch sizes, repeatable; default 1 to 64.")
    ] = None,
    hidden: Annotated[
        int, typer.Option(min=128, max=1 << 20, help="h_in and h_out of the operators; a multiple of 128.")
    ] = 4096,
    intermediate: Annotated[
        int, typer.Option(min=128, max=1 << 20, help="h_out of add-lora; width of the activation.")
    ] = 11008,
    dtype: Annotated[HalfDtype, typer.Option(help="Data type of weights, inputs and outputs.")] = HalfDtype.BFLOAT16,
    layers: Annotated[int, typer.Option(min=1, max=1_024, help="Layers with separate weights in one CUDA graph.")] = 32,
    replays: Annotated[int, typer.Option(min=1, max=10_000, help="Replays; results are medians.")] = 7,
) -> None:
    """Measure all GPU operators, LoRA's first, against goals, peers, torch and the hardware's limits."""
    from punica_serve.bench.kernels.run import run
    from punica_serve.bench.kernels.setting import KernelSettings

    settings = KernelSettings(
        dtype=dtype.value,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        batch_sizes=tuple(sorted(batch or BATCH_SIZES)),
        num_replays=replays,
    )
    measure(partial(run, settings, tuple(only or Section), device), out)
