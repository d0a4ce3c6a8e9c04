"""`punica-serve bench cpu-assist`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import EngineConfigOption, EngineDeviceOption, ShapeOption, subject_of


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tokens: Annotated[int, typer.Option(min=1, max=256, help="Tokens of the prefill.")] = 128,
    rank: Annotated[int, typer.Option(min=1, max=128, help="Rank of the adapter, on q, k and v.")] = 32,
    processes: Annotated[
        list[int] | None, typer.Option(min=1, max=32, help="Processes, and threads; default 1, 2, 4, 8.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="Repeats, of which the median counts.")] = 20,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure the parts of `engine.cold_start: cpu_assist` by themselves: figures 16 to 18 of CaraServe.

    Rows to processes and back over shared memory and over sockets, x A B by processes and by torch's threads, and on a
    GPU, waits of the device and of the host. No engine is started.
    """
    from punica_serve.bench.cpu_assist_figures.figure_settings import FigureSettings
    from punica_serve.bench.cpu_assist_figures.figures_report import measure_all

    counts = tuple(sorted(set(processes or (1, 2, 4, 8))))
    settings = FigureSettings(num_tokens=tokens, rank=rank, counts=counts, num_repeats=repeats)
    measure(partial(measure_all, subject_of(config, shape, device), settings), out)
