"""`punica-serve bench layer`."""

from functools import partial
from typing import Annotated

import typer

from punica_serve.base_model.lora_layout import USUAL_LORA_RANK, LoraLimits
from punica_serve.bench.layer.layer_sizes import CPU_SIZES, GPU_SIZES, LayerSection
from punica_serve.cli.bench.common import DEFAULT_DEVICE, DEFAULT_OUT, DeviceOption, OutOption, measure
from punica_serve.cli.bench.engine_options import ShardOption, shard_of


def command(
    device: DeviceOption = DEFAULT_DEVICE,
    out: OutOption = DEFAULT_OUT,
    only: Annotated[
        list[LayerSection] | None, typer.Option(help="Sections to run, repeatable; all by default.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Model shapes; default llama-2-7b and llama-2-13b, on a CPU llama-2-7b.")
    ] = None,
    context: Annotated[
        list[int] | None,
        typer.Option(min=1, max=1_000_000, help="Context lengths; default 512 and 2048, on a CPU 128."),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            max=1_024,
            help="Batches of decodes; default 1 to 32 for figure10, 32 and 64 for projections, 64, 128 and 256 for "
            "lora-parts; on a CPU 1 and 4.",
        ),
    ] = None,
    prompt: Annotated[
        list[int] | None,
        typer.Option(min=1, max=65_536, help="Prompts beside decodes; default 512, 1024 and 2048, on a CPU 64."),
    ] = None,
    rank: Annotated[int, typer.Option(min=8, max=128, help="Rank of all adapters.")] = 16,
    max_lora_rank: Annotated[
        int,
        typer.Option(
            min=8, max=128, help="The highest rank for which LoRA's tables have room, as in engine.max_lora_rank."
        ),
    ] = USUAL_LORA_RANK,
    shard: ShardOption = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, max=1_024, help="Layers with separate weights in one CUDA graph; default 8, on a CPU 1."),
    ] = None,
    replays: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Replays; results are medians; default 7, on a CPU 1.")
    ] = None,
) -> None:
    """Measure whole transformer layers: figure 10, and the cost of LoRA in decode steps and beside a prefill.

    With `--device cpu` it checks them on smaller sizes: its times say nothing about a GPU's.
    """
    from punica_serve.bench.layer.run import run
    from punica_serve.bench.layer.setting import LayerSettings
    from punica_serve.shapes import shape_of

    rank_of_group = shard_of(shard)
    usual = CPU_SIZES if device == "cpu" else GPU_SIZES
    settings = LayerSettings(
        models=tuple(shape_of(name).shard(rank_of_group) for name in shape or usual.shapes),
        context_lengths=tuple(context or usual.contexts),
        batch_sizes=tuple(sorted(batch or usual.batches)),
        projection_batch_sizes=tuple(sorted(batch or usual.projection_batches)),
        part_batch_sizes=tuple(sorted(batch or usual.part_batches)),
        prompt_lengths=tuple(prompt or usual.prompts),
        num_beside_prefill=usual.beside_prefill,
        rank=rank,
        limits=LoraLimits(max_lora_rank),
        num_layers=layers or usual.layers,
        num_replays=replays or usual.replays,
    )
    measure(partial(run, settings, tuple(only or LayerSection), device), out)
