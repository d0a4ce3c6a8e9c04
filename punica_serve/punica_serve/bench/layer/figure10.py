"""Figure 10: a whole transformer layer over batch sizes, context lengths and populations, and the backbone alone."""

from typing import TYPE_CHECKING

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.kernels.curves import label_batches
from punica_serve.bench.layer.layers import RandomLayers
from punica_serve.bench.layer.setting import LayerBench, adapters_of, decode_buckets
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BACKBONE = "backbone"
COLUMNS = (
    Column("model", "model"),
    Column("context", "context"),
    Column("batch", "batch"),
    Column("population", "population"),
    Column("us", "layer, µs", ".1f"),
    Column("added_us", "+ LoRA, µs", ".1f"),
    Column("times_backbone", "x backbone", ".3f"),
)


def measure(bench: LayerBench) -> TableData:
    """Measures one decode step for every model, batch size, context length and population."""
    settings = bench.settings
    num_batches = len(settings.models) * len(settings.context_lengths) * len(settings.batch_sizes)
    bench.begin("figure 10", num_batches * (1 + len(Population)))
    rows: list[tuple[Value, ...]] = []
    for model in settings.models:
        for context_length in settings.context_lengths:
            rows += _measure(bench, model, context_length)
    return TableData(
        "figure10",
        f"Figure 10: one transformer layer, decode, rank {settings.rank} on all projections, {bench.how}",
        COLUMNS,
        rows,
        notes=(f"mean of {settings.num_layers} layers with separate weights; includes embedding and last norm",),
    )


def _measure(bench: LayerBench, model: ModelConfig, context_length: int) -> list[tuple[Value, ...]]:
    settings = bench.settings
    layers = RandomLayers(
        model,
        num_layers=settings.num_layers,
        buckets=decode_buckets(settings.batch_sizes),
        context_length=context_length,
        rank=settings.rank,
        limits=settings.limits,
        dtype=bench.dtype,
        device=bench.device,
    )
    rows: list[tuple[Value, ...]] = []
    for batch_size in settings.batch_sizes:
        cell = (model.name, context_length, batch_size)
        backbone = layers.decode(adapters_of(None, batch_size))
        backbone_us = bench.layer_us(layers.forward(backbone))
        rows.append((*cell, BACKBONE, backbone_us, 0.0, 1.0))
        for population in Population:
            step = layers.decode(adapters_of(population, batch_size))
            layers.check(step, backbone)
            us = bench.layer_us(layers.forward(step))
            rows.append((*cell, population.value, us, us - backbone_us, us / backbone_us))
    return rows


def draw(table: TableData, figure: "Figure") -> None:
    """Draws a panel for each model and context length, a curve for each population."""
    records = table.records
    panels = list(dict.fromkeys((record["model"], record["context"]) for record in records))
    figure.set_size_inches(4 * len(panels), 4)
    for axes, (model, context) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        own = [record for record in records if (record["model"], record["context"]) == (model, context)]
        for population in dict.fromkeys(record["population"] for record in own):
            points = [record for record in own if record["population"] == population]
            style = "k--" if population == BACKBONE else "o-"
            axes.plot(numbers(points, "batch"), numbers(points, "us"), style, ms=4, label=f"{population}")
        axes.set_title(f"{model}, {context} tokens")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("one layer, µs")
        label_batches(axes, [int(record["batch"] or 0) for record in own])
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside right center")
    figure.suptitle(table.title, fontsize=11)
