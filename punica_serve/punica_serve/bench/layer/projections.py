"""The cost of LoRA on all seven projections of one layer: beside the dense products alone, and within the layer.

In the first case LoRA runs beside the four dense products and nothing reads its result. In the layer, the fused
operators between the products read it, as in the engine; the goal is for this result. Both exclude attention, which is
the same with and without LoRA.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from punica_kernels.bench.timing import copy_bytes_per_s
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.layer.layers import NoAttention, RandomLayers
from punica_serve.bench.layer.setting import LayerBench, adapters_of, decode_buckets
from punica_serve.bench.reference_figures import goals, peers
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.models.linear import Linear, LoraBatch
from punica_serve.models.model import ForwardBatch
from punica_serve.shapes import shape_of
from punica_serve.workload import Population

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("batch", "batch"),
    Column("population", "population"),
    Column("adapters", "adapters"),
    Column("gemms_us", "products, µs", ".1f"),
    Column("gemms_added_us", "+ LoRA beside them", ".1f"),
    Column("layer_us", "layer without attention", ".1f"),
    Column("added_us", "+ LoRA", ".1f"),
    Column("goal_us", "goal", ".1f"),
    Column("met", "met"),
    Column("peer_us", "best peer", ".1f"),
    Column("peer", "which"),
    Column("floor_us", "floor", ".1f"),
)
#: Tokens in the KvCache, which nothing reads here.
_CONTEXT_LENGTH = 16


def measure(bench: LayerBench) -> TableData:
    """Uses the first model of the settings."""
    settings = bench.settings
    model = settings.models[0]
    batch_sizes = settings.projection_batch_sizes
    bench.begin("projections", len(batch_sizes) * 2 * (1 + len(Population)))
    layers = RandomLayers(
        model,
        num_layers=settings.num_layers,
        buckets=decode_buckets(batch_sizes),
        context_length=_CONTEXT_LENGTH,
        rank=settings.rank,
        limits=settings.limits,
        dtype=bench.dtype,
        device=bench.device,
    )
    copy_rate = copy_bytes_per_s(bench.device, 1 << 30 if bench.device.type == "cuda" else 1 << 24)
    return TableData(
        "projections",
        f"LoRA of rank {settings.rank} on all seven projections of one {model.name} layer, µs {bench.how}",
        COLUMNS,
        [row for batch_size in batch_sizes for row in _measure(bench, layers, batch_size, copy_rate)],
        notes=(
            "floor: bytes of the adapters over the measured copy rate",
            f"{peers().layer.source}, beside the dense products",
        ),
    )


def adapter_bytes_of_layer(model: ModelConfig, rank: int, itemsize: int) -> int:
    """Bytes of A and B of all seven projections of one layer."""
    return sum(rank * (out + into) for out, into in model.linear_shapes.values()) * itemsize


def _measure(bench: LayerBench, layers: RandomLayers, batch_size: int, copy_rate: float) -> list[tuple[Value, ...]]:
    backbone = layers.decode(adapters_of(None, batch_size))
    gemms_us = bench.layer_us(_products(layers, backbone.lora, batch_size))
    layer_us = bench.layer_us(layers.forward(_without_attention(backbone)))
    is_goal = layers.config.linear_shapes == shape_of("llama-2-7b").linear_shapes and bench.settings.rank == 16
    rows: list[tuple[Value, ...]] = []
    for population in Population:
        adapters = adapters_of(population, batch_size)
        step = layers.decode(adapters)
        layers.check(step, backbone)
        beside_us = bench.layer_us(_products(layers, step.lora, batch_size)) - gemms_us
        added_us = bench.layer_us(layers.forward(_without_attention(step))) - layer_us
        key = (batch_size, population)
        goal, peer = (goals().layer_goal(*key), peers().layer_peer(*key)) if is_goal else (None, None)
        met = None if goal is None else "yes" if added_us <= goal else "no"
        floor = adapter_bytes_of_layer(layers.config, bench.settings.rank, bench.dtype.itemsize) / copy_rate * 1e6
        num_adapters = len(set(adapters))
        rows.append(
            (
                *(batch_size, population.value, num_adapters, gemms_us, beside_us, layer_us, added_us, goal, met),
                *((peer.microseconds, peer.name) if peer else (None, None)),
                num_adapters * floor,
            )
        )
    return rows


def _without_attention(step: ForwardBatch) -> ForwardBatch:
    return ForwardBatch(step.token_ids, step.positions, NoAttention(step.attention), step.lora)


def _products(layers: RandomLayers, lora: LoraBatch, batch_size: int) -> Callable[[], list[Tensor | None]]:
    """The four stacked dense products of every layer, always on the same inputs."""
    groups = layers.config.spec.groups
    products = [
        (group.in_features, Linear(number, group, weights.linears[group.name]))
        for number, weights in enumerate(layers.weights.layers)
        for group in groups
    ]
    widths = {group.in_features for group in groups}
    like = layers.weights.embedding
    inputs = {width: torch.randn(batch_size, width, dtype=like.dtype, device=like.device) for width in widths}

    def run() -> list[Tensor | None]:
        results: list[Tensor | None] = []
        for width, product in products:
            results += product(inputs[width], lora)[:2]
        return results

    return run


def draw(table: TableData, figure: "Figure") -> None:
    """Draws bars of the added time, with goals as strokes."""
    axes = figure.subplots()
    records = table.records
    places = range(len(records))
    for number, (key, label) in enumerate((("added_us", "this engine"), ("peer_us", "best peer"))):
        axes.bar([place + 0.4 * number for place in places], numbers(records, key), 0.4, label=label)
    axes.scatter(places, numbers(records, "goal_us"), marker="_", s=300, c="k", label="goal", zorder=3)
    centers = [place + 0.2 for place in places]
    axes.step(centers, numbers(records, "floor_us"), where="mid", color="tab:red", label="byte floor")
    labels = [f"{record['population']}\nbatch {record['batch']}" for record in records]
    axes.set_xticks(centers, labels, fontsize=8)
    axes.set_ylabel("added to one layer, µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
