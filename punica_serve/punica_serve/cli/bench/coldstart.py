"""`punica-serve bench coldstart`."""

from enum import StrEnum
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
    StoreRateOption,
    subject_of,
)
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from punica_serve.bench.report import Report


_GAP_HELP = (
    "Time from one arrival to the next. One place in the batch is for the stream, so a request that arrives before the"
    " last has finished, some ten steps, waits for it in both streams, and loads from a store share its rate. By"
    " default 100 from host memory and packed files, 200 from the disk and folders, 500 from a store."
)


_FROM_HELP = (
    "Where cold adapters are: in host memory, in packed files that the page cache has (packed) or lacks (disk), in"
    " folders that were never read (files), or in a store of this machine (http, s3)."
)


class _Mode(StrEnum):
    WAIT = "wait"
    LAYERWISE = "layerwise"
    CPU_ASSIST = "cpu_assist"
    AUTO = "auto"


class _Source(StrEnum):
    HOST = "host"
    PACKED = "packed"
    DISK = "disk"
    FILES = "files"
    HTTP = "http"
    S3 = "s3"


#: Each load ends, and its request has its tokens, before the next arrives: of rank 16 on seven projections of a 7B.
_GAPS_MS = {_Source.DISK: 200.0, _Source.FILES: 200.0, _Source.HTTP: 500.0, _Source.S3: 500.0}
_SHORTEST_GAP_MS = 100.0


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    source: Annotated[_Source, typer.Option("--from", help=_FROM_HELP)] = _Source.HOST,
    arrivals: Annotated[int, typer.Option(min=1, max=10_000, help="Requests of the stream, in each round.")] = 32,
    gap_ms: Annotated[float | None, typer.Option(min=1, max=60_000, help=_GAP_HELP)] = None,
    rounds: Annotated[int, typer.Option(min=1, max=1_000, help="Rounds of a cold and a warm stream, in turn.")] = 4,
    rank: RankOption = 16,
    batch_size: Annotated[
        int, typer.Option(min=1, max=256, help="Requests in one step; all but one of them decode all the time.")
    ] = 32,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=100_000, help="Tokens of each prompt.")] = 128,
    mode: Annotated[_Mode, typer.Option(help="How cold requests start (`engine.cold_start`).")] = _Mode.LAYERWISE,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for temporary adapter files.")] = None,
    store_gbps: StoreRateOption = 1.0,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure the time to first token when the adapter is not on the device, and the effect on other requests."""
    from punica_serve.bench.coldstart_stream import ColdstartSettings

    if folder is not None:
        check_folder(folder, "--folder")
    settings = ColdstartSettings(
        source=source.value,
        num_arrivals=arrivals,
        gap_s=(gap_ms or _GAPS_MS.get(source, _SHORTEST_GAP_MS)) / 1e3,
        num_rounds=rounds,
        rank=rank,
        batch_size=batch_size,
        num_prompt_tokens=prompt_tokens,
        mode=mode.value,
        folder=folder,
        store_gb_per_s=store_gbps,
    )
    subject = subject_of(config, shape, device)

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.bench.coldstart_report import measure_all

        return measure_all(subject, settings, progress)

    measure(benchmark, out, REFRESH_PER_S)
