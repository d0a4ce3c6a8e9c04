"""`punica-serve bench hops`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, measure
from punica_serve.cli.bench.engine_options import EngineConfigOption, RankOption, ShapeOption
from punica_serve.cli.bench.serving_options import ShapeDeviceOption, cluster_of
from punica_serve.process.tracing import check_exporter

if TYPE_CHECKING:
    from punica_serve.bench.hops.hops_run import HopSettings
    from punica_serve.bench.report import Report
    from punica_serve.config.cluster import ClusterConfig

#: Drawing takes time from the process that also plays all clients.
_REFRESH_PER_S = 1.0


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: ShapeDeviceOption = "cuda:0",
    clients: Annotated[int, typer.Option(min=1, max=1_024, help="Clients of the closed loop.")] = 1,
    requests: Annotated[int, typer.Option(min=2, max=100_000, help="Requests of each client.")] = 50,
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1_000_000, help="Tokens of a prompt.")] = 160,
    answer_tokens: Annotated[int, typer.Option(min=2, max=1_000_000, help="Tokens of an answer.")] = 16,
    rank: RankOption = 16,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure each hop of a request through a whole cluster, from traces. Needs the extra `otel`."""
    from punica_serve.bench.hops.hops_run import HopSettings

    check_exporter("the benchmark's own collector")
    settings = HopSettings(clients, requests, prompt_tokens, answer_tokens, rank)
    measure(partial(_benchmark, cluster_of(config, shape, device), settings), out, _REFRESH_PER_S)


def _benchmark(cluster: "ClusterConfig", settings: "HopSettings", progress: Progress) -> "Report":
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.bench.hops.hops_run import run_hops

    return run_hops(cluster, read_model_config(cluster.engine.model), settings, progress)
