"""`punica-serve bench textgen`."""

from pathlib import Path
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
    ShardOption,
    TensorParallelOption,
    shard_of,
    subject_of,
)
from punica_serve.errors import ConfigError
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

#: On a CPU: full batches within seconds, without the workload's longest answers, and only steps are timed.
_CPU_REQUESTS = 96
_CPU_ROUNDS = 5
_CPU_LENGTH = (32, 64)

_REQUESTS_HELP = (
    "Requests of the workload; 1000, or 96 on a CPU. Each may have an adapter of its own in host memory: at rank 16,"
    " 80 MB for llama-2-7b and 125 MB for llama-2-13b. `--shape llama-2-13b --requests 400` takes 50 GB instead of 125."
    " The row `files` writes the first 300 to disk, 38 GB."
)

RowsOption = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="Rows to run; by default those that suit the device.")
]
RequestsOption = Annotated[int | None, typer.Option(min=1, max=1000, help=_REQUESTS_HELP)]
RoundsOption = Annotated[
    int | None, typer.Option(min=1, max=1_000, help="Rounds; results are medians. Default 1, on a CPU 5.")
]
LengthOption = Annotated[
    tuple[int, int] | None,
    typer.Option(
        metavar="PROMPT OUTPUT",
        help="Length of every prompt and answer in tokens, instead of the workload's; on a CPU 32 64.",
    ),
]
ResidentOption = Annotated[
    bool | None,
    typer.Option(
        "--resident/--cold", help="Whether adapters are on the device before the clock starts; default on a CPU."
    ),
]


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    shard: ShardOption = None,
    tensor_parallel: TensorParallelOption = 1,
    rows: RowsOption = None,
    requests: RequestsOption = None,
    rounds: RoundsOption = None,
    length: LengthOption = None,
    resident: ResidentOption = None,
    rank: RankOption = 16,
    batch_size: Annotated[int, typer.Option(min=2, max=1_024, help="Requests in one step.")] = 32,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for temporary adapter files.")] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure tokens/s on the shipped workload: four populations, the base alone, files, and three baselines."""
    from punica_serve.bench.textgen import TextgenSettings
    from punica_serve.bench.textgen_rows import parse_rows
    from punica_serve.workload import RequestLength

    if folder is not None:
        check_folder(folder, "--folder")
    subject = subject_of(config, shape, device, shard_of(shard), tensor_parallel)
    if not subject.on_gpu:
        requests, rounds, length = requests or _CPU_REQUESTS, rounds or _CPU_ROUNDS, length or _CPU_LENGTH
    if length:
        check_length(length, subject.config.context_of(subject.model))
    settings = TextgenSettings(
        rows=parse_rows(rows, on_gpu=subject.on_gpu, with_peft=subject.model.rank.size == 1),
        num_requests=requests or 1000,
        rank=rank,
        batch_size=batch_size,
        num_rounds=rounds or 1,
        length=RequestLength(*length) if length else None,
        resident=not subject.on_gpu if resident is None else resident,
        folder=folder,
    )

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.bench.textgen_report import measure_all

        return measure_all(subject, settings, progress)

    measure(benchmark, out, REFRESH_PER_S)


def check_length(length: tuple[int, int], context: int) -> None:
    """Raises ConfigError for lengths that exceed the model's context."""
    if min(length) < 1 or sum(length) > context:
        message = f"`--length` is {length[0]} {length[1]}; both must be at least 1, and together at most {context}"
        raise ConfigError(message, param="length")
