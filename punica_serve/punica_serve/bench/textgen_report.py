"""What textgen leaves behind: a table on the terminal, JSON with the machine it ran on, and a picture."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from punica_serve.bench.report import machine
from punica_serve.bench.textgen import Measurement, Workload


def ratios(measurements: Sequence[Measurement]) -> dict[str, float]:
    """What batching gains for each population, and what different adapters cost beside identical ones."""
    alone = {m.population: m.tokens_per_s for m in measurements if m.concurrency == 1}
    batched = {m.population: m.tokens_per_s for m in measurements if m.concurrency > 1}
    found = {f"batched / alone, {name}": batched[name] / alone[name] for name in alone}
    return {**found, "distinct / identical, batched": batched["distinct"] / batched["identical"]}


def write_json(path: Path, measurements: Sequence[Measurement], workload: Workload, device: str) -> None:
    document = {
        "benchmark": "textgen",
        "machine": machine(device),
        "workload": asdict(workload),
        "measurements": [asdict(measurement) for measurement in measurements],
        "ratios": ratios(measurements),
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def print_table(measurements: Sequence[Measurement], console: Console) -> None:
    table = Table("population", "in flight", "adapters", "tokens/s", "lowest - highest", "mean batch", title="textgen")
    for m in measurements:
        low, high = m.tokens_per_s_range
        table.add_row(
            m.population,
            f"{m.concurrency}",
            f"{m.num_adapters}",
            f"{m.tokens_per_s:,.0f}",
            f"{low:,.0f} - {high:,.0f}",
            f"{m.mean_batch_size:.1f}",
        )
    console.print(table)
    for name, value in ratios(measurements).items():
        console.print(f"{name}: {value:.2f}")


def draw(path: Path, measurements: Sequence[Measurement]) -> None:
    """Bars of tokens/s: one group for each population, one bar for each number of requests in flight."""
    from matplotlib.figure import Figure

    populations = list(dict.fromkeys(m.population for m in measurements))
    concurrencies = sorted({m.concurrency for m in measurements})
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(concurrencies)
    for number, concurrency in enumerate(concurrencies):
        values = [m.tokens_per_s for m in measurements if m.concurrency == concurrency]
        places = [place + number * width for place in range(len(populations))]
        bars = axes.bar(places, values, width, label=f"{concurrency} in flight")
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(populations))], populations)
    axes.set_ylabel("tokens/s")
    axes.set_title("Text generation on one device")
    axes.legend()
    figure.savefig(path, dpi=120)
