"""Runs `bench layer`."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from rich.progress import Progress

from punica_serve.bench.layer import figure10, projections
from punica_serve.bench.layer.setting import LayerBench, LayerSettings
from punica_serve.bench.report import Draw, Report, TableData, machine
from punica_serve.engine.memory.device_memory import open_device


def run(settings: LayerSettings, device: str, progress: Progress) -> Report:
    """Measures the goals of the seven projections, then figure 10. The report names sections that failed.

    Raises ConfigError for a device that can't be used, and for sizes that take too long on a CPU.
    """
    on = open_device(device)
    if on.type == "cpu":
        settings.check_cpu()
    bench = LayerBench(settings, on, progress)
    tables: list[TableData] = []
    figures: dict[str, Draw] = {}
    failures: list[str] = []
    sections: tuple[tuple[Callable[[LayerBench], TableData], Callable[..., None]], ...] = (
        (projections.measure, projections.draw),
        (figure10.measure, figure10.draw),
    )
    for measure, draw in sections:
        try:
            with torch.inference_mode():
                table = measure(bench)
        except (ArithmeticError, RuntimeError) as error:
            failures.append(f"{measure.__module__}: {error}")
            continue
        tables.append(table)
        figures[table.name] = partial(draw, table)
    described = {**asdict(settings), "models": [model.name for model in settings.models]}
    return Report("layer", machine(device), described, tables, figures, failures=failures)
