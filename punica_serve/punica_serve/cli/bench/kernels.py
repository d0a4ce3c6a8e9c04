"""`punica-serve bench kernels`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.bench.kernels.sections import CPU_SIZES, GPU_SIZES, HalfDtype, Section
from punica_serve.cli.bench.common import DEFAULT_DEVICE, DEFAULT_OUT, DeviceOption, OutOption, measure


def command(
    device: DeviceOption = DEFAULT_DEVICE,
    out: OutOption = DEFAULT_OUT,
    only: Annotated[list[Section] | None, typer.Option(help="Sections to run, repeatable; all by default.")] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65_536, help="Batch sizes, repeatable; default 1 to 64, on a CPU 1 and 8."),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            min=128, max=1 << 20, help="h_in and h_out of the operators; a multiple of 128; default 4096, on a CPU 256."
        ),
    ] = None,
    intermediate: Annotated[
        int | None,
        typer.Option(
            min=128, max=1 << 20, help="h_out of add-lora; width of the activation; default 11008, on a CPU 512."
        ),
    ] = None,
    dtype: Annotated[HalfDtype, typer.Option(help="Data type of weights, inputs and outputs.")] = HalfDtype.BFLOAT16,
    layers: Annotated[
        int | None,
        typer.Option(min=1, max=1_024, help="Layers with separate weights in one CUDA graph; default 32, on a CPU 1."),
    ] = None,
    replays: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Replays; results are medians; default 7, on a CPU 1."),
    ] = None,
) -> None:
    """Measure all GPU operators, LoRA's first, against goals, peers, torch and the hardware's limits.

    With `--device cpu` it checks them on smaller sizes: its times say nothing about a GPU's.
    """
    from punica_serve.bench.kernels.run import run
    from punica_serve.bench.kernels.setting import KernelSettings

    usual = CPU_SIZES if device == "cpu" else GPU_SIZES
    settings = KernelSettings(
        dtype=dtype.value,
        hidden_size=hidden or usual.hidden,
        intermediate_size=intermediate or usual.intermediate,
        num_layers=layers or usual.layers,
        batch_sizes=tuple(sorted(batch or usual.batches)),
        num_replays=replays or usual.replays,
    )
    measure(partial(run, settings, tuple(only or Section), device), out)
