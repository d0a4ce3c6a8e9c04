"""`punica-serve bench coldstart-loads`."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import (
    EngineConfigOption,
    EngineDeviceOption,
    RankOption,
    ShapeOption,
    StoreRateOption,
    subject_of,
)
from punica_serve.process.outputs import check_folder


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    rank: RankOption = 16,
    loads: Annotated[
        int, typer.Option(min=1, max=1_000, help="Loads from each place, of which the median counts.")
    ] = 5,
    store_gbps: StoreRateOption = 1.0,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for temporary files, on the disk to be measured.")
    ] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure an adapter's way to host memory: from folders, packed files, the disk, and a store. Starts no engine."""
    from punica_serve.bench.coldstart_loads.loads_report import measure_all
    from punica_serve.bench.coldstart_loads.loads_run import LoadsSettings

    if folder is not None:
        check_folder(folder, "--folder")
    settings = LoadsSettings(rank=rank, num_loads=loads, store_gb_per_s=store_gbps, folder=folder)
    measure(partial(measure_all, subject_of(config, shape, device), settings), out)
