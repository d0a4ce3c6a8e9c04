"""`punica-serve bench overhead`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    subject_of,
)

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    out: OutOption = DEFAULT_OUT,
    batch: Annotated[list[int] | None, typer.Option(min=1, max=1_024, help="Batch sizes; default 1 to 256.")] = None,
    ranks: Annotated[
        list[int] | None, typer.Option(min=1, max=128, help="Ranks of one sweep; default 8 to 128.")
    ] = None,
    adapters: Annotated[
        list[int] | None, typer.Option(min=1, max=1_024, help="Numbers of adapters; default 1 to 64.")
    ] = None,
    rank: RankOption = 16,
    batch_of_ranks: Annotated[int, typer.Option(min=1, max=1_024, help="Batch size of the sweep over ranks.")] = 32,
    steps: Annotated[
        int, typer.Option(min=1, max=100_000, help="Decode steps of each batch; results are medians.")
    ] = 24,
) -> None:
    """Measure what LoRA adds to a decode step, over batch sizes, ranks and numbers of adapters; record a trace."""
    from punica_serve.bench.overhead.run import run
    from punica_serve.bench.overhead.sweep import OverheadSettings

    settings = OverheadSettings(
        batch_sizes=tuple(sorted(batch or _BATCH_SIZES)),
        ranks=tuple(sorted(ranks or (8, 16, 32, 64, 128))),
        adapter_counts=tuple(sorted(adapters or (1, 2, 4, 8, 16, 32, 64))),
        rank=rank,
        batch_size=batch_of_ranks,
        num_steps=steps,
    )
    subject = subject_of(config, shape, device)
    measure(partial(run, subject, settings, out), out, REFRESH_PER_S)
