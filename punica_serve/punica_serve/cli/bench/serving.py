"""`punica-serve bench serving`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast, get_args

import typer
from rich.progress import Progress

from punica_serve.cli.bench.common import DEFAULT_OUT, OutOption, make_console, measure
from punica_serve.cli.bench.engine_options import EngineConfigOption, RankOption, ShapeOption
from punica_serve.cli.options import DEFAULT_CONFIG, KeyOption
from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError
from punica_serve.numbers import counted
from punica_serve.process.outputs import check_folder

if TYPE_CHECKING:
    from punica_serve.bench.report import Report
    from punica_serve.config.cluster import ClusterConfig

#: Drawing takes time from the process that also plays all clients.
_REFRESH_PER_S = 2.0

_URL_HELP = (
    "An OpenAI-compatible server to measure instead of a cluster that the command starts; `--shape` or `--config` names"
    " the model that it serves."
)

Name = TypeVar("Name", bound=str)


def command(
    config: EngineConfigOption = None,
    shape: ShapeOption = None,
    device: Annotated[str, typer.Option("--device", help="Device of a shape's worker.")] = "cuda:0",
    url: Annotated[str | None, typer.Option(metavar="URL", help=_URL_HELP)] = None,
    key: KeyOption = None,
    adapter_name: Annotated[
        str, typer.Option(metavar="NAME", help="What the server at `--url` calls adapters; {} stands for a number.")
    ] = "dummy-{}",
    workloads: Annotated[str, typer.Option(metavar="NAME,...", help="Workloads to run.")] = (
        "ours,prompt_heavy,answer_heavy,shared_prefixes"
    ),
    populations: Annotated[str, typer.Option(metavar="NAME,...", help="Populations to run.")] = "distinct,skewed,base",
    apis: Annotated[
        str, typer.Option(metavar="NAME,...", help="http (server-sent events), websocket (not of other servers).")
    ] = "http",
    requests: Annotated[
        str,
        typer.Option(metavar="COUNT,...", help="Requests of each run; one count for all workloads, or one for each."),
    ] = "256",
    clients: Annotated[int, typer.Option(min=1, max=4096, help="Clients of the closed loop.")] = 32,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Poisson arrivals a second, instead of a closed loop.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="With --rate: requests that share a prefix arrive together.")
    ] = False,
    rank: RankOption = 16,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Requests in one step of the cluster; by default the config's.")
    ] = None,
    slo: Annotated[
        tuple[float, float],
        typer.Option(metavar="FIRST LATER", help="The SLO of goodput: ms to the first token, and for each later one."),
    ] = (500.0, 50.0),
    peer_files: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Measure nothing; write files and a command for vLLM there.")
    ] = None,
    out: OutOption = DEFAULT_OUT,
) -> None:
    """Measure a whole serving stack through its API: this project's, or any OpenAI-compatible server."""
    from punica_serve.bench.serving.served_times import ServiceLevel
    from punica_serve.bench.serving.serving_settings import ApiName, ServingSettings
    from punica_serve.bench.serving.serving_workloads import PopulationName, WorkloadName

    cluster = _cluster(config, shape, device)
    workload_names = _names(workloads, get_args(WorkloadName), "workloads")
    num_requests = _counts(requests, len(workload_names))
    settings = ServingSettings(
        workloads=workload_names,
        populations=_names(populations, get_args(PopulationName), "populations"),
        apis=_names(apis, get_args(ApiName), "apis"),
        num_requests=num_requests,
        num_clients=clients,
        level=ServiceLevel(slo[0] / 1e3, slo[1] / 1e3),
        rate_per_s=rate,
        groups_together=together,
        rank=rank,
        batch_size=batch_size,
        url=url,
        adapter_name=adapter_name,
    )

    if peer_files is not None:
        _write_peer_files(peer_files, cluster, max(num_requests), rank, batch_size)
        return

    def benchmark(progress: Progress) -> "Report":
        from punica_serve.base_model.model_config import read_model_config
        from punica_serve.bench.serving.serving_report import make_report
        from punica_serve.bench.serving.serving_run import run_all

        model = read_model_config(cluster.engine.model)
        rows = run_all(cluster, model, settings, key, progress)
        return make_report(rows, settings, cluster.engine.served_name)

    measure(benchmark, out, _REFRESH_PER_S)


def _write_peer_files(folder: Path, cluster: "ClusterConfig", count: int, rank: int, batch_size: int | None) -> None:
    """Writes as many adapters as a population of ``count`` requests can have. Raises ConfigError."""
    from punica_serve.base_model.model_config import read_model_config
    from punica_serve.bench.serving.serving_peer import write_peer_files

    check_folder(folder, "--peer-files")
    engine = cluster.engine.model_copy(update={"max_batch_size": batch_size or cluster.engine.max_batch_size})
    console = make_console()
    with Progress(console=console, transient=True) as progress:
        model = read_model_config(engine.model)
        script = write_peer_files(folder, engine, model, num_adapters=count, rank=rank, progress=progress)
    console.print(f"wrote {script}; run it with sh, then measure with --url http://127.0.0.1:8000", soft_wrap=True)


def _cluster(config: Path | None, shape: str | None, device: str) -> "ClusterConfig":
    """A config's cluster, or one worker with a shape's random weights. Raises ConfigError."""
    from punica_serve.config.cluster import load_config, parse_config
    from punica_serve.shapes import shape_folder

    if shape is None:
        return load_config(find_config(config or DEFAULT_CONFIG))
    if config is not None:
        raise ConfigError("`--shape` and `--config` both name a model to run; give only one", param="shape")
    document = {
        "engine": {"model": str(shape_folder(shape)), "model_name": shape, "load_format": "dummy"},
        "runner": {"devices": [device]},
    }
    return parse_config(document, source="--shape", folder=Path())


def _names(text: str, known: tuple[Name, ...], option: str) -> tuple[Name, ...]:
    """Parses names separated by commas; repeats are dropped. Raises ConfigError for an unknown one."""
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"`--{option}` names {name!r}; there are {', '.join(known)}", param=option)
    return tuple(cast(Name, name) for name in dict.fromkeys(wanted))


def _counts(text: str, num_workloads: int) -> tuple[int, ...]:
    """Parses one count for all workloads, or one for each. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) for word in words):
        message = f"`--requests` is {text!r}; give a number of requests, or one for each workload"
        raise ConfigError(message, param="requests")
    if len(words) not in (1, num_workloads):
        workloads = counted(num_workloads, "workload")
        message = f"`--requests` has {len(words)} numbers for {workloads}; give one, or one for each"
        raise ConfigError(message, param="requests")
    return tuple(map(int, words * num_workloads))[:num_workloads]
