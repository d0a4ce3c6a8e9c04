"""`punica-serve bench batching`."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    REFRESH_PER_S,
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    TensorParallelOption,
    subject_of,
)

if TYPE_CHECKING:
    from punica_serve.bench.report import Report


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tensor_parallel: TensorParallelOption = 1,
    largest: Annotated[int, typer.Option(min=1, max=1_024, help="Largest decode batch.")] = 256,
    rank: RankOption = 16,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure latency and tokens/s against batch size; suggest a batch size, and tell `max_batch_size: auto`'s."""
    from punica_serve.bench.batching import BatchingSettings

    sizes = tuple(size for size in BatchingSettings().decode_batches if size <= largest)
    subject = subject_of(config, shape, device, tensor_parallel=tensor_parallel)
    settings = BatchingSettings(decode_batches=sizes, rank=rank, auto_context=subject.config.target_context)

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.bench.batching_report import measure_all

        return measure_all(subject, settings, progress)

    measure(benchmark, out, REFRESH_PER_S)
