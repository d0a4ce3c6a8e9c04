"""Starts engines in turn, each in a process of its own, and compares a group with one device."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.progress import Progress

from punica_serve.bench.report import Column, Report, TableData, Value, host_facts
from punica_serve.config.device_groups import neighbours
from punica_serve.config.engine_section import EngineConfig
from punica_serve.process.death_reason import death_reason

#: For the largest models, whose weights come from a disk.
_TIMEOUT_S = 900.0
_MODULE = "punica_serve.bench.start.start_process"


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

    @property
    def devices(self) -> tuple[str, str]:
        """One device, and the group."""
        return self.device, neighbours(self.device, self.tensor_parallel)


@dataclass(frozen=True, slots=True)
class Start:
    """One start: seconds from the beginning of its process until it was ready, and of each phase, by rank."""

    total_s: float
    by_rank: Sequence[Mapping[str, float]]


def run(settings: StartSettings, progress: Progress) -> Report:
    """Measures the starts in turn. One that fails ends the benchmark, and is told."""
    task = progress.add_task("start", total=2 * (settings.num_rounds + 1))
    starts: dict[str, list[Start]] = {device: [] for device in settings.devices}
    failures = []
    try:
        for number in range(settings.num_rounds + 1):
            for device, measured in starts.items():
                start = start_once(settings.config, device)
                if number:
                    measured.append(start)
                progress.advance(task)
    except RuntimeError as error:
        failures.append(f"{error}")
    return make_report(settings, starts, failures)


def start_once(config: EngineConfig, device: str) -> Start:
    """Starts an engine and ends it. Raises RuntimeError if it can't be started."""
    command = [sys.executable, "-P", "-m", _MODULE, config.model_dump_json(), device, f"{time.monotonic()}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{device} was not ready within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [death_reason(done.returncode)]
        raise RuntimeError(f"{device} can't be started: {last[0]}")
    return Start(**json.loads(done.stdout.splitlines()[-1]))


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
