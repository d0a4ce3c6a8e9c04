"""The cost of LoRA in steps with a prefill: a layer with a prompt's rows beside decodes, attention included.

Each prompt is a whole one. The decodes have an adapter each, and so has the prompt.
"""

from typing import TYPE_CHECKING

from punica_serve.bench.layer.layers import RandomLayers
from punica_serve.bench.layer.setting import LayerBench
from punica_serve.bench.report import Column, TableData, Value, numbers
from punica_serve.engine.cuda.batch_bucket import BatchBucket

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = (
    Column("prompt", "prompt"),
    Column("decodes", "decodes"),
    Column("us", "layer, µs", ".1f"),
    Column("prompt_us", "+ LoRA of the prompt", ".1f"),
    Column("prompt_share", "added", ".1%"),
    Column("added_us", "+ LoRA of all", ".1f"),
    Column("share", "added", ".1%"),
)
#: The most that LoRA of a prompt may add.
_GOAL = 0.06


def measure(bench: LayerBench) -> TableData:
    """Uses the first model and the first context length of the settings."""
    settings = bench.settings
    model, context_length = settings.models[0], settings.context_lengths[0]
    num_decodes = settings.num_beside_prefill
    bench.begin("prefills", 3 * len(settings.prompt_lengths))
    layers = RandomLayers(
        model,
        num_layers=settings.num_layers,
        buckets=[BatchBucket(rows, num_decodes) for rows in settings.prompt_lengths],
        context_length=context_length,
        rank=settings.rank,
        limits=settings.limits,
        dtype=bench.dtype,
        device=bench.device,
    )
    return TableData(
        "prefills",
        f"A prompt and {num_decodes} decodes of {context_length} tokens in one {model.name} layer, rank "
        f"{settings.rank} on all projections, {bench.how}",
        COLUMNS,
        [_measure(bench, layers, rows, num_decodes) for rows in settings.prompt_lengths],
        notes=(f"goal: LoRA of the prompt adds {_GOAL:.0%} at most",),
    )


def _measure(bench: LayerBench, layers: RandomLayers, num_tokens: int, num_decodes: int) -> tuple[Value, ...]:
    backbone = layers.prefill(num_tokens, None, [None] * num_decodes)
    us = bench.layer_us(layers.forward(backbone))
    populations: tuple[list[int | None], ...] = ([None] * num_decodes, [*range(1, num_decodes + 1)])
    added = []
    for decodes in populations:
        step = layers.prefill(num_tokens, 0, decodes)
        layers.check_finite(step)
        added.append(bench.layer_us(layers.forward(step)) - us)
    return (num_tokens, num_decodes, us, added[0], added[0] / us, added[1], added[1] / us)


def draw(table: TableData, figure: "Figure") -> None:
    """Draws stacked bars: a layer, and what LoRA of the prompt and of the decodes adds."""
    axes = figure.subplots()
    records = table.records
    places = [f"{record['prompt']} and {record['decodes']} decodes" for record in records]
    base, prompt, both = (numbers(records, key) for key in ("us", "prompt_us", "added_us"))
    axes.bar(places, base, color="0.8", label="without LoRA")
    axes.bar(places, prompt, bottom=base, label="LoRA of the prompt")
    rest = [total - own for total, own in zip(both, prompt, strict=True)]
    axes.bar(places, rest, bottom=[a + b for a, b in zip(base, prompt, strict=True)], label="LoRA of the decodes")
    axes.set_ylabel("one layer, µs")
    axes.set_title(table.title, fontsize=10)
    axes.legend()
