"""Starts engines in turn, each in a process of its own, and compares a group with one device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from rich.progress import Progress, TaskID

from punica_serve.bench.report import Column, Report, TableData, Value, host_facts
from punica_serve.bench.start.started_engine import Phases, Start, start_once
from punica_serve.config.device_groups import neighbours
from punica_serve.config.engine_section import EngineConfig


@dataclass(frozen=True, slots=True)
class StartSettings:
    """The benchmark's options."""

    config: EngineConfig
    #: The first, or only one.
    device: str
    #: The devices of the group.
    tensor_parallel: int
    #: Starts of each that are measured, after one that compiles kernels and fills the page cache.
    num_rounds: int
    #: Seconds that one start may take, to its end.
    timeout_s: float

    @property
    def devices(self) -> tuple[str, str]:
        """One device, and the group."""
        return self.device, neighbours(self.device, self.tensor_parallel)


def run(settings: StartSettings, progress: Progress) -> Report:
    """Measures the starts in turn. A device or group that fails is reported once, and skipped from then on."""
    task = progress.add_task("starts", total=2 * (settings.num_rounds + 1))
    starts: dict[str, list[Start]] = {device: [] for device in settings.devices}
    failures: dict[str, str] = {}
    for number in range(settings.num_rounds + 1):
        for device in [each for each in starts if each not in failures]:
            try:
                start = start_once(settings.config, device, settings.timeout_s, partial(_show, progress, task, device))
            except RuntimeError as error:
                failures[device] = f"{error}"
                progress.advance(task, settings.num_rounds + 1 - number)
                continue
            if number:
                starts[device].append(start)
            progress.advance(task)
    return make_report(settings, starts, list(failures.values()))


def _show(progress: Progress, task: TaskID, device: str, phases: Phases) -> None:
    progress.update(task, description=f"start of {device}: {phases}")


def make_report(settings: StartSettings, starts: Mapping[str, Sequence[Start]], failures: Sequence[str] = ()) -> Report:
    """Medians over the rounds, and the group's over the one device's."""
    measured = {device: each for device, each in starts.items() if each}
    by_rank = [phases for each in measured.values() for start in each for phases in start.by_rank]
    names = tuple(dict.fromkeys(name for phases in by_rank for name in phases))
    columns = (
        Column("device", "device"),
        Column("rank", "rank"),
        Column("total_s", "ready after s", ".2f"),
        *(Column(name.replace(" ", "_") + "_s", name, ".2f") for name in names),
        Column("rest_s", "rest", ".2f"),
    )
    rows = [row for device, each in measured.items() for row in _rows(device, each, names)]
    table = TableData("starts", f"Start of {settings.config.model.name}, s of each phase", columns, rows)
    one, group = (measured.get(device) for device in settings.devices)
    facts: dict[str, Value] = {}
    if one and group:
        facts["group over one device"] = round(_total(group) / _total(one), 2)
    return Report("start", host_facts(), _shown(settings), [table], facts=facts, failures=failures)


def _rows(device: str, starts: Sequence[Start], names: Sequence[str]) -> Iterator[tuple[Value, ...]]:
    """One for each rank. The rest is what comes before its process is there, and waits for other ranks."""
    for rank in range(len(starts[0].by_rank)):
        own = [start.by_rank[rank] for start in starts]
        rest = median(start.total_s - sum(phases.values()) for start, phases in zip(starts, own, strict=True))
        yield device, rank, _total(starts), *(median(each.get(name, 0.0) for each in own) for name in names), rest


def _total(starts: Sequence[Start]) -> float:
    return median(start.total_s for start in starts)


def _shown(settings: StartSettings) -> dict[str, Any]:
    config = settings.config.model_dump(mode="json")
    return {"engine": config, "devices": settings.devices, "num_rounds": settings.num_rounds}
