"""`punica-serve bench decode-ranks`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    ShapeOption,
    TensorParallelOption,
    subject_of,
)


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tensor_parallel: TensorParallelOption = 1,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, max=1_024, help="Batch sizes; default 1, 8, 16, 24, 32.")
    ] = None,
    context: Annotated[int, typer.Option(min=64, max=1_000_000, help="Tokens of each request.")] = 128,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure decode steps over the highest and the average rank of the batch: figure 4 of CaraServe."""
    from punica_serve.bench.decode_ranks import DecodeRanksSettings, measure_all

    sizes = tuple(sorted(set(batch or (1, 8, 16, 24, 32))))
    settings = DecodeRanksSettings(batch_sizes=sizes, num_context_tokens=context)
    measure(
        partial(measure_all, subject_of(config, shape, device, tensor_parallel=tensor_parallel), settings),
        out,
        REFRESH_PER_S,
    )
