"""Runs `bench layer`."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from types import ModuleType

import torch
from rich.progress import Progress

from punica_serve.bench.layer import figure10, lora_parts, prefills, projections
from punica_serve.bench.layer.layer_sizes import LayerSection
from punica_serve.bench.layer.setting import LayerBench, LayerSettings
from punica_serve.bench.report import Draw, Report, TableData, machine
from punica_serve.engine.memory.device_memory import open_device

_MODULES: dict[LayerSection, ModuleType] = {
    LayerSection.PROJECTIONS: projections,
    LayerSection.PREFILLS: prefills,
    LayerSection.LORA_PARTS: lora_parts,
    LayerSection.FIGURE10: figure10,
}


def run(settings: LayerSettings, sections: Sequence[LayerSection], device: str, progress: Progress) -> Report:
    """Measures the sections one after another. The report names sections that failed; the others go on.

    Raises ConfigError for a device that can't be used, and for sizes that take too long on a CPU.
    """
    on = open_device(device)
    if on.type == "cpu":
        settings.check_cpu()
    bench = LayerBench(settings, on, progress)
    tables: list[TableData] = []
    figures: dict[str, Draw] = {}
    failures: list[str] = []
    for section in (section for section in LayerSection if section in sections):
        module = _MODULES[section]
        measure: Callable[[LayerBench], TableData] = module.measure
        try:
            with torch.inference_mode():
                table = measure(bench)
        except (ArithmeticError, RuntimeError) as error:
            failures.append(f"{module.__name__}: {error}")
            continue
        tables.append(table)
        figures[section.value] = partial(module.draw, table)
    described = {**asdict(settings), "models": [model.name for model in settings.models], "sections": list(sections)}
    return Report("layer", machine(device), described, tables, figures, failures=failures)
