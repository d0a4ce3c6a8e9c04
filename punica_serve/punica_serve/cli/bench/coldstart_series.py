"""`punica-serve bench coldstart-series`."""

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
    ShapeOption,
    TensorParallelOption,
    subject_of,
)

if TYPE_CHECKING:
    from punica_serve.bench.report import Report

_SERIES_HELP = (
    "Series to run, of rank64, rank32, rank64-slow, serverless128, serverless256, serverless512, and full, which fills"
    " batches of 24."
)
_ROWS_HELP = "Rows to run: cached, on_demand, and the modes of `engine.cold_start`. All by default."
_LINK_HELP = (
    "Slow the link to the device down to about this rate, by copying adapters' bytes a whole number of times. This is"
    " an emulation; the report has the rate that came about. By default the link is as it is."
)
_ADAPTERS_HELP = (
    "Adapters of each rank in host memory. As many are on the device at a time, so lower it for a large model on few"
    " GPUs. At least the batch size."
)
_TRACE_HELP = "A day of the Azure Functions trace of 2019, for the serverless series, instead of a generated one."


class _Projections(StrEnum):
    QKV = "qkv"
    ALL = "all"


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: EngineDeviceOption = None,
    tensor_parallel: TensorParallelOption = 1,
    series: Annotated[str, typer.Option(metavar="NAME,...", help=_SERIES_HELP)] = "rank64",
    rows: Annotated[str | None, typer.Option(metavar="NAME,...", help=_ROWS_HELP)] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Time of arrivals in each row; the paper's is 300.")
    ] = 60.0,
    projections: Annotated[
        _Projections, typer.Option(help="Projections that adapters change: q, k and v, or all seven.")
    ] = _Projections.QKV,
    link_gbps: Annotated[
        float | None, typer.Option("--link-gbps", min=0.1, max=1_000, metavar="GB/S", help=_LINK_HELP)
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, max=64, help="Requests in one step.")] = 32,
    adapters: Annotated[int, typer.Option(min=1, max=1024, help=_ADAPTERS_HELP)] = 64,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help=_TRACE_HELP)] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure cold starts from host memory in the terms of CaraServe's evaluation: series of arrivals, ways to load."""
    from punica_serve.bench.coldstart_series.series_catalogue import parse_series
    from punica_serve.bench.coldstart_series.series_rows import parse_series_rows
    from punica_serve.bench.coldstart_series.series_run import plan_of
    from punica_serve.bench.coldstart_series.series_settings import SeriesSettings

    settings = SeriesSettings(
        series=parse_series(series),
        rows=parse_series_rows(rows),
        seconds=seconds,
        projections=projections.value,
        link_gb_per_s=link_gbps,
        batch_size=batch_size,
        num_adapters=adapters,
        trace=trace,
    )
    plan = plan_of(settings)
    subject = subject_of(config, shape, device, tensor_parallel=tensor_parallel)

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.bench.coldstart_series.series_report import measure_all

        return measure_all(subject, settings, plan, progress)

    measure(benchmark, out, REFRESH_PER_S)
