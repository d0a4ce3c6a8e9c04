"""The options of `punica-serve bench serving`, and the lists in them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from punica_serve.cli.options import DEFAULT_CONFIG, check_text
from punica_serve.cli.shipped_configs import find_config
from punica_serve.errors import ConfigError
from punica_serve.numbers import counted, is_count

if TYPE_CHECKING:
    from punica_serve.config.cluster import ClusterConfig

Name = TypeVar("Name", bound=str)

_MAX_SLO_MS = 86_400_000
#: More than any run has.
_MAX_DIGITS = 9

_URL_HELP = (
    "An OpenAI-compatible server to measure instead of a cluster that the command starts; `--shape` or `--config` names"
    " the model that it serves."
)


def _check_path(path: Path | None) -> Path | None:
    """Raises ConfigError for a path that can't be written into a script."""
    check_text(None if path is None else str(path))
    return path


ShapeDeviceOption = Annotated[str, typer.Option("--device", help="Device of a shape's worker.")]
UrlOption = Annotated[str | None, typer.Option(metavar="URL", callback=check_text, help=_URL_HELP)]
AdapterNameOption = Annotated[
    str, typer.Option(metavar="NAME", help="Names of the adapters on the server at `--url`; {} stands for a number.")
]
WorkloadsOption = Annotated[str, typer.Option(metavar="NAME,...", help="Workloads to run.")]
PopulationsOption = Annotated[str, typer.Option(metavar="NAME,...", help="Populations to run.")]
ApisOption = Annotated[
    str,
    typer.Option(
        metavar="NAME,...",
        help="http (server-sent events), websocket (not of other servers), engine (none of the stack).",
    ),
]
RequestsOption = Annotated[
    str,
    typer.Option(metavar="COUNT,...", help="Requests of each run; one count for all workloads, or one for each."),
]
ClientsOption = Annotated[int, typer.Option(min=1, max=4096, help="Clients of the closed loop.")]
RateOption = Annotated[
    float | None, typer.Option(min=0.001, max=1e6, help="Poisson arrivals a second, instead of a closed loop.")
]
TogetherOption = Annotated[
    bool, typer.Option("--together", help="With --rate: requests that share a prefix arrive together.")
]
BatchSizeOption = Annotated[
    int | None, typer.Option(min=1, max=1_024, help="Requests in one step of the cluster; by default the config's.")
]


def check_slo(slo: tuple[float, float]) -> tuple[float, float]:
    """Raises ConfigError for a latency that no answer could keep, or none could break."""
    if not all(0 < latency_ms <= _MAX_SLO_MS for latency_ms in slo):
        message = f"`--slo` is {slo[0]:g} {slo[1]:g}; both must be above 0 ms, and at most {_MAX_SLO_MS}"
        raise ConfigError(message, param="slo")
    return slo


SloOption = Annotated[
    tuple[float, float],
    typer.Option(
        metavar="FIRST LATER",
        callback=check_slo,
        help="The SLO of goodput: ms to the first token, and for each later one.",
    ),
]
LongPromptOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=1_000_000, metavar="TOKENS", help="One more client sends prompts of so many tokens beside each load."
    ),
]
PeerFilesOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", callback=_check_path, help="Measure nothing; write files and a command for vLLM there."
    ),
]


def parse_names(text: str, known: tuple[Name, ...], option: str) -> tuple[Name, ...]:
    """Parses names separated by commas; repeats are dropped. Raises ConfigError for an unknown one."""
    wanted = [name.strip() for name in text.split(",")]
    for name in wanted:
        if name not in known:
            raise ConfigError(f"`--{option}` names {name!r}; there are {', '.join(known)}", param=option)
    return tuple(cast(Name, name) for name in dict.fromkeys(wanted))


def parse_counts(text: str, num_workloads: int) -> tuple[int, ...]:
    """Parses one count for all workloads, or one for each. Raises ConfigError."""
    words = [word.strip() for word in text.split(",")]
    if not all(is_count(word, _MAX_DIGITS) and int(word) for word in words):
        message = f"`--requests` is {text!r}; give a number of requests, or one for each workload"
        raise ConfigError(message, param="requests")
    if len(words) not in (1, num_workloads):
        workloads = counted(num_workloads, "workload")
        message = f"`--requests` has {len(words)} numbers for {workloads}; give one, or one for each"
        raise ConfigError(message, param="requests")
    return tuple(map(int, words * num_workloads))[:num_workloads]


def cluster_of(config: Path | None, shape: str | None, device: str) -> "ClusterConfig":
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
