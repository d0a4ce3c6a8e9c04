"""`punica-serve bench layer`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.cli.bench.common import DEFAULT_DEVICE, DEFAULT_OUT, DeviceOption, OutOption, measure
from punica_serve.cli.bench.engine_options import ShardOption, shard_of


def command(
    device: DeviceOption = DEFAULT_DEVICE,
    out: OutOption = DEFAULT_OUT,
    shape: Annotated[list[str] | None, typer.Option(help="Model shapes; default llama-2-7b and llama-2-13b.")] = None,
    context: Annotated[
        list[int] | None, typer.Option(min=1, max=1_000_000, help="Context lengths; default 512 and 2048.")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, max=1_024, help="Batch sizes of figure 10; default 1 to 32.")
    ] = None,
    rank: Annotated[int, typer.Option(min=8, max=128, help="Rank of all adapters.")] = 16,
    shard: ShardOption = None,
    layers: Annotated[int, typer.Option(min=1, max=1_024, help="Layers with separate weights in one CUDA graph.")] = 8,
    replays: Annotated[int, typer.Option(min=1, max=10_000, help="Replays; results are medians.")] = 7,
) -> None:
    """Measure whole transformer layers: figure 10, and the cost of LoRA on all seven projections."""
    from punica_serve.bench.layer.run import run
    from punica_serve.bench.layer.setting import LayerSettings
    from punica_serve.shapes import shape_of

    rank_of_group = shard_of(shard)
    settings = LayerSettings(
        models=tuple(shape_of(name).shard(rank_of_group) for name in shape or ("llama-2-7b", "llama-2-13b")),
        context_lengths=tuple(context or (512, 2048)),
        batch_sizes=tuple(sorted(batch or (1, 2, 4, 8, 16, 32))),
        rank=rank,
        num_layers=layers,
        num_replays=replays,
    )
    measure(partial(run, settings, device), out)
