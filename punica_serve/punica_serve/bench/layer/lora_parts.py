"""LoRA in a layer, whole and by part: of prompts and of many decodes, with one adapter and with distinct ones.

The whole is a step's time with LoRA over that without. A part is the time of its kernels alone, so parts add up to more
than the whole: within a layer LoRA runs beside the dense products. Only a GPU has these kernels.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.bench.layer.layers import RandomLayers
from punica_serve.bench.layer.setting import LayerBench, adapters_of, decode_buckets
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.models.model import ForwardBatch
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PARTS = (
    Column("shrink_us", "shrinks, µs", ".1f"),
    *(Column(f"expand_{group}_us", f"expand {group}", ".1f") for group in LORA_GROUPS),
    Column("activation_us", "activation", ".1f"),
    Column("bare_activation_us", "without LoRA", ".1f"),
)
COLUMNS = (
    Column("rows", "rows"),
    Column("adapters", "adapters"),
    Column("us", "layer, µs", ".1f"),
    Column("added_us", "+ LoRA", ".1f"),
    Column("share", "added", ".1%"),
    *_PARTS,
)


class _Steps(NamedTuple):
    """Steps of the same rows: without LoRA, and by name with it."""

    rows: str
    backbone: ForwardBatch
    with_lora: dict[str, ForwardBatch]


def measure(bench: LayerBench) -> TableData:
    """Uses the first model and the first context length of the settings."""
    settings = bench.settings
    model, context_length = settings.models[0], settings.context_lengths[0]
    num_decodes = settings.num_beside_prefill
    prefills = [BatchBucket(rows, num_decodes) for rows in settings.prompt_lengths]
    layers = RandomLayers(
        model,
        num_layers=settings.num_layers,
        buckets=[*prefills, *decode_buckets(settings.part_batch_sizes)],
        context_length=context_length,
        rank=settings.rank,
        limits=settings.limits,
        dtype=bench.dtype,
        device=bench.device,
    )
    cells_of_a_step = 1 + (len(_PARTS) if bench.device.type == "cuda" else 0)
    num_steps = len(settings.prompt_lengths) + len(settings.part_batch_sizes)
    bench.begin("lora parts", num_steps * (1 + 2 * cells_of_a_step))
    plans: list[Callable[[], _Steps]] = [
        *(lambda rows=rows: _prefills(layers, rows, num_decodes) for rows in settings.prompt_lengths),
        *(lambda rows=rows: _decodes(layers, rows) for rows in settings.part_batch_sizes),
    ]
    return TableData(
        "lora_parts",
        f"LoRA of rank {settings.rank} on all projections of one {model.name} layer by part, {bench.how}",
        COLUMNS,
        [row for plan in plans for row in _measure(bench, layers, plan())],
        notes=(
            f"a prompt is beside {num_decodes} decodes; one adapter is the prompt's alone, or that of all decodes",
            f"decodes of {context_length} tokens",
            "parts: their kernels alone, on a GPU; an expand without a time is within the activation",
        ),
    )


def _prefills(layers: RandomLayers, num_tokens: int, num_decodes: int) -> _Steps:
    without = [None] * num_decodes
    one = layers.prefill(num_tokens, 0, without)
    distinct = layers.prefill(num_tokens, 0, [*range(1, num_decodes + 1)])
    return _Steps(
        f"prompt of {num_tokens}", layers.prefill(num_tokens, None, without), {"one": one, "distinct": distinct}
    )


def _decodes(layers: RandomLayers, batch_size: int) -> _Steps:
    one, distinct = (
        layers.decode(adapters_of(population, batch_size)) for population in (Population.IDENTICAL, Population.DISTINCT)
    )
    backbone = layers.decode(adapters_of(None, batch_size))
    return _Steps(f"{batch_size} decodes", backbone, {"one": one, "distinct": distinct})


def _measure(bench: LayerBench, layers: RandomLayers, steps: _Steps) -> Iterator[tuple[Value, ...]]:
    us = bench.layer_us(layers.forward(steps.backbone))
    for adapters, step in steps.with_lora.items():
        layers.check_finite(step)
        added_us = bench.layer_us(layers.forward(step)) - us
        parts = _parts(bench, layers, step) if bench.device.type == "cuda" else {}
        yield (steps.rows, adapters, us, added_us, added_us / us, *(parts.get(column.key) for column in _PARTS))


def _parts(bench: LayerBench, layers: RandomLayers, step: ForwardBatch) -> dict[str, float]:
    from punica_serve.bench.layer.lora_calls import LoraCalls
    from punica_serve.engine.cuda.cuda_lora import CudaLora

    assert isinstance(step.lora, CudaLora)
    calls = LoraCalls(step.lora, layers.config, layers.weights.embedding, len(step.token_ids))
    return {
        "shrink_us": bench.measure_us(calls.shrinks()),
        **{f"expand_{group}_us": bench.measure_us(own) for group, own in calls.expands().items()},
        "activation_us": bench.measure_us(calls.activations()),
        "bare_activation_us": bench.measure_us(calls.bare_activations()),
    }


def draw(table: TableData, figure: "Figure") -> None:
    """Draws stacked bars of the parts, with what LoRA adds to the layer as strokes."""
    axes = figure.subplots()
    records = table.records
    places = [f"{record['rows']}\n{record['adapters']}" for record in records]
    bottom = [0.0] * len(records)
    for column in _PARTS[:-1]:
        heights = [float(record[column.key] or 0) for record in records]
        if column.key == "activation_us":
            without = (float(record["bare_activation_us"] or 0) for record in records)
            heights = [own - bare for own, bare in zip(heights, without, strict=True)]
        axes.bar(places, heights, bottom=bottom, label=column.title.removesuffix(", µs"))
        bottom = [start + height for start, height in zip(bottom, heights, strict=True)]
    axes.scatter(places, numbers(records, "added_us"), marker="_", s=200, c="k", label="added to the layer", zorder=3)
    axes.tick_params(axis="x", rotation=90, labelsize=7)
    axes.set_ylabel("LoRA of one layer, µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend(fontsize=8)
