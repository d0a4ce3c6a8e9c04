"""Chooses a benchmark's engine: a config's model, or a known shape with random weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.cli.options import DEFAULT_CONFIG
from punica_serve.cli.shipped_configs import find_config
from punica_serve.shapes import SHAPE_NAMES

if TYPE_CHECKING:
    from punica_serve.bench.subject import Subject
    from punica_serve.config.engine_section import EngineConfig

#: The measured process itself draws the bar, so it does that rarely.
REFRESH_PER_S = 1.0

EngineConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help=f"Config file, or a shipped one's name, whose model to run; {DEFAULT_CONFIG} by default.",
    ),
]
ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--shape",
        metavar="NAME",
        help=f"Instead of a config: random weights in a known shape: {', '.join(SHAPE_NAMES)}.",
    ),
]
EngineDeviceOption = Annotated[
    str | None, typer.Option("--device", help="Device to measure. Default: the config's first, or cuda:0 for a shape.")
]
RankOption = Annotated[int, typer.Option("--rank", min=1, max=128, help="Rank of the random adapters.")]
StoreRateOption = Annotated[
    float,
    typer.Option("--store-gbps", min=0.001, max=1_000, metavar="GB/S", help="The rate that a store's server keeps to."),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="RANK/SIZE",
        help="Measure one rank of a group by itself, such as 0/8: exchanges become copies of as many bytes.",
    ),
]

TensorParallelOption = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        min=1,
        max=64,
        metavar="SIZE",
        help="Measure a group of so many devices, from the first on: one copy of the model on all of them.",
    ),
]


def shard_of(shard: str | None) -> Rank:
    """The rank that `--shard` names. Raises ConfigError."""
    from punica_serve.bench.lone_rank import parse_shard

    return SINGLE if shard is None else parse_shard(shard)


def engine_of(config: Path | None, shape: str | None, device: str | None) -> tuple["EngineConfig", str]:
    """The engine's config and its first device. Raises ConfigError."""
    from punica_serve.bench.subject import Subject
    from punica_serve.config.cluster import load_config
    from punica_serve.errors import ConfigError

    if shape is not None and config is not None:
        raise ConfigError("`--shape` and `--config` both name a model to run; give only one", param="shape")
    if shape is not None:
        return Subject.shape_config(shape), device or "cuda:0"
    cluster = load_config(find_config(config or DEFAULT_CONFIG))
    return cluster.engine, device or cluster.runner.workers[0]


def subject_of(
    config: Path | None,
    shape: str | None,
    device: str | None,
    rank: Rank = SINGLE,
    tensor_parallel: int | None = None,
) -> "Subject":
    """The engine to measure: a device, one rank of several by itself, or a group.

    ``tensor_parallel``: None where the command can't measure groups. Raises ConfigError.
    """
    from punica_serve.bench.subject import Subject
    from punica_serve.config.device_groups import neighbours, ranks_of
    from punica_serve.errors import ConfigError

    engine, first = engine_of(config, shape, device)
    if tensor_parallel is None and len(ranks_of(first)) > 1:
        message = f"this command measures one device, and {first!r} is a group; name one device by `--device`"
        raise ConfigError(message, param="device")
    if tensor_parallel is None:
        return Subject.of(engine, first)
    if tensor_parallel > 1 and rank.size > 1:
        raise ConfigError("`--shard` measures one rank and `--tensor-parallel` all; give only one", param="shard")
    if rank.size > 1:
        return Subject.of(engine, first, rank)
    return Subject.of_group(engine, neighbours(first, tensor_parallel))
