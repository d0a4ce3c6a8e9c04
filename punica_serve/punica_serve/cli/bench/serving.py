"""`punica-serve bench serving`."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.progress import Progress

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, make_console, measure
from punica_serve.cli.bench.engine_options import EngineConfigOption, RankOption, ShapeOption
from punica_serve.cli.bench.serving_options import (
    AdapterNameOption,
    ApisOption,
    BatchSizeOption,
    ClientsOption,
    LongPromptOption,
    PeerFilesOption,
    PopulationsOption,
    RateOption,
    RequestsOption,
    ShapeDeviceOption,
    SloOption,
    TogetherOption,
    UrlOption,
    WorkloadsOption,
    cluster_of,
    parse_counts,
    parse_names,
)
from punica_serve.cli.options import KeyOption
from punica_serve.cli.progress_lines import shown_progress
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from punica_serve.bench.report import Report
    from punica_serve.bench.serving.serving_settings import ServingSettings
    from punica_serve.config.cluster import ClusterConfig

#: Drawing takes time from the process that also plays all clients.
_REFRESH_PER_S = 2.0


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: ShapeDeviceOption = "cuda:0",
    url: UrlOption = None,
    key: KeyOption = None,
    adapter_name: AdapterNameOption = "dummy-{}",
    workloads: WorkloadsOption = "ours,prompt_heavy,answer_heavy,shared_prefixes",
    populations: PopulationsOption = "distinct,skewed,base",
    apis: ApisOption = "http",
    requests: RequestsOption = "256",
    clients: ClientsOption = 32,
    rate: RateOption = None,
    together: TogetherOption = False,
    long_prompt: LongPromptOption = None,
    rank: RankOption = 16,
    batch_size: BatchSizeOption = None,
    slo: SloOption = (500.0, 50.0),
    peer_files: PeerFilesOption = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure a whole serving stack through its API: this project's, or any OpenAI-compatible server."""
    from punica_serve.bench.serving.served_times import ServiceLevel
    from punica_serve.bench.serving.serving_settings import ApiName, ServingSettings
    from punica_serve.bench.serving.serving_workloads import PopulationName, WorkloadName

    cluster = cluster_of(config, shape, device)
    workload_names = parse_names(workloads, get_args(WorkloadName), "workloads")
    num_requests = parse_counts(requests, len(workload_names))
    settings = ServingSettings(
        workloads=workload_names,
        populations=parse_names(populations, get_args(PopulationName), "populations"),
        apis=parse_names(apis, get_args(ApiName), "apis"),
        num_requests=num_requests,
        num_clients=clients,
        level=ServiceLevel(slo[0] / 1e3, slo[1] / 1e3),
        rate_per_s=rate,
        groups_together=together,
        long_prompt=long_prompt,
        rank=rank,
        batch_size=batch_size,
        url=url,
        adapter_name=adapter_name,
    )

    if peer_files is None:
        measure(partial(_benchmark, cluster, settings, key), out, _REFRESH_PER_S)
    else:
        _write_peer_files(peer_files, cluster, max(num_requests), rank, batch_size)


def _benchmark(cluster: "ClusterConfig", settings: "ServingSettings", key: str | None, progress: Progress) -> "Report":
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.bench.serving.serving_report import make_report
    from punica_serve.bench.serving.serving_run import run_all

    model = read_model_config(cluster.engine.model)
    rows = run_all(cluster, model, settings, key, progress)
    return make_report(rows, settings, cluster.engine.served_name, max_context=cluster.engine.context_of(model))


def _write_peer_files(folder: Path, cluster: "ClusterConfig", count: int, rank: int, batch_size: int | None) -> None:
    """Writes as many adapters as a population of ``count`` requests can have. Raises ConfigError."""
    from punica_serve.base_model.config_json import read_model_config
    from punica_serve.bench.serving.serving_peer import write_peer_files

    check_folder(folder, "--peer-files")
    engine = cluster.engine.model_copy(update={"max_batch_size": batch_size or cluster.engine.max_batch_size})
    console = make_console()
    with shown_progress(console) as progress:
        model = read_model_config(engine.model)
        script = write_peer_files(folder, engine, model, num_adapters=count, rank=rank, progress=progress)
    console.print(f"wrote {script}; run it with sh, then measure with --url http://127.0.0.1:8000", soft_wrap=True)
