"""Runs `bench collectives`: starts the ranks, each in a process, and makes a table of what they tell."""

import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import yaml
from rich.progress import Progress

from punica_serve.base_model.rank import Rank
from punica_serve.bench.collectives.exchange_rank import ExchangeSettings, run_rank
from punica_serve.bench.collectives.exchange_ways import FLASHINFER, IN_TURN, WITH_NORM
from punica_serve.bench.report import Column, Report, TableData, Value, machine
from punica_serve.engine.ranks.exchange_choice import WAYS, ExchangeTime, ExchangeTimes, MeasuredGroup, choose
from punica_serve.engine.ranks.flashinfer_module import compile_module, is_compiled
from punica_serve.errors import ConfigError
from punica_serve.errors.reasons import reason_of
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.ending import end_process

#: For the start of a rank, which imports torch, and for the longest exchange.
_SILENCE_S = 180.0


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    """A rank's result for one way at one size."""

    way: str
    num_bytes: int
    #: Microseconds, or why the way does not work.
    result: float | str


def run_exchanges(settings: ExchangeSettings, progress: Progress, times_file: Path | None = None) -> Report:
    """Measures all ways at all sizes. A way that does not work is named as a failure.

    FlashInfer's kernels are compiled first, if they are to be measured. ``times_file``: is written for
    `engine.exchange_times`. Raises ConfigError if it can't be.
    """
    failures: list[str] = []
    if FLASHINFER in settings.ways and (fault := _compile_fault(progress)):
        failures.append(fault)
        settings = replace(settings, ways=tuple(way for way in settings.ways if way != FLASHINFER))
    task = progress.add_task("collectives", total=settings.num_ranks * len(settings.ways) * len(settings.sizes))
    found: list[ExchangeResult] = []
    try:
        for each in _results(settings):
            found.append(each)
            progress.advance(task)
    except RuntimeError as error:
        failures.append(str(error))
    reasons = {f"{each.way} at {each.num_bytes} bytes: {each.result}" for each in found if isinstance(each.result, str)}
    device = f"{settings.device}:0" if settings.device == "cuda" else settings.device
    tables = exchange_tables(settings, found)
    facts: dict[str, Value] = {}
    if settings.device == "cuda" and (group := measured_group(_gpu_name(), settings.num_ranks, tables)) is not None:
        facts["fastest"] = f"{choose(group.times)}"
        if times_file is not None:
            write_times(group, times_file)
    return Report(
        "collectives",
        machine(device),
        asdict(settings),
        tables,
        {},
        facts=facts,
        failures=[*failures, *sorted(reasons)],
    )


def _compile_fault(progress: Progress) -> str | None:
    """Compiles FlashInfer's kernels where they are missing: minutes, once. Returns why that can't be done."""
    task = progress.add_task("compiling FlashInfer's kernels", total=1)
    try:
        if not is_compiled():
            compile_module()
    except (ImportError, RuntimeError) as error:
        return f"{FLASHINFER}: {error}"
    progress.advance(task)
    return None


def exchange_tables(settings: ExchangeSettings, found: list[ExchangeResult]) -> list[TableData]:
    """Microseconds of one exchange of each size by each way: those of the slowest rank. Sums alone, then with norms."""
    how = "in a CUDA graph" if settings.device == "cuda" else "call by call"
    what = f"over {settings.num_ranks} ranks, {settings.dtype}, µs of one exchange {how}"
    sums = [way for way in settings.ways if way not in WITH_NORM]
    with_norms = [way for way in settings.ways if way in WITH_NORM]
    tables = [_table("exchanges", f"Sum {what}", sums, settings, found)] if sums else []
    if with_norms:
        title = f"Parts summed, sum {what}, residual added and normed"
        tables.append(_table("layer_exchanges", title, with_norms, settings, found))
    return tables


def _table(key: str, title: str, ways: list[str], settings: ExchangeSettings, found: list[ExchangeResult]) -> TableData:
    slowest: dict[tuple[int, str], float] = {}
    for each in found:
        if not isinstance(each.result, str):
            place = (each.num_bytes, each.way)
            slowest[place] = max(each.result, slowest.get(place, 0.0))
    rows: list[tuple[Value, ...]] = []
    for num_bytes in settings.sizes:
        times = {way: slowest.get((num_bytes, way)) for way in ways}
        known = {way: time_us for way, time_us in times.items() if time_us is not None}
        rows.append((num_bytes, *times.values(), min(known, key=known.__getitem__) if known else None))
    columns = (
        Column("bytes", "bytes", ",d"),
        *(Column(f"{way}_us", f"{way}, µs", ",.1f") for way in ways),
        Column("fastest", "fastest"),
    )
    return TableData(key, title, columns, rows)


def measured_group(device_name: str, num_ranks: int, tables: list[TableData]) -> MeasuredGroup | None:
    """The tables as the engine reads them; None if NCCL's times are missing at all sizes."""
    by_size: dict[Value, dict[str, Value]] = {}
    for table in tables:
        for record in table.records:
            by_size.setdefault(record["bytes"], {}).update(record)
    times = tuple(
        ExchangeTime.model_validate({"bytes": num_bytes, **_rounded(record)})
        for num_bytes, record in by_size.items()
        if record.get("nccl_us") is not None
    )
    return MeasuredGroup(device=device_name, ranks=num_ranks, times=times) if times else None


def write_times(group: MeasuredGroup, file: Path) -> None:
    """Writes a file for `engine.exchange_times`. Raises ConfigError."""
    document = ExchangeTimes(groups=(group,)).model_dump(mode="json", exclude_none=True)
    try:
        file.write_text(yaml.safe_dump(document, sort_keys=False, default_flow_style=None), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"`--table`: {file} can't be written: {reason_of(error)}", param="table") from error


def _rounded(record: Mapping[str, Value]) -> dict[str, float]:
    """Microseconds of the engine's ways."""
    times = {way: record.get(f"{way}_us") for way in (*WAYS, *WITH_NORM)}
    known = {way: round(float(time_us), 1) for way, time_us in times.items() if time_us is not None}
    in_turn = [time_us for way, time_us in known.items() if way in IN_TURN]
    unfused = {"unfused": min(in_turn)} if in_turn else {}
    return {way: time_us for way, time_us in known.items() if way not in IN_TURN} | unfused


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name(0)


def _results(settings: ExchangeSettings) -> Iterator[ExchangeResult]:
    """The ranks' results, as they arrive. Raises RuntimeError if one fails, or is silent too long."""
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start unblocks Ctrl-C
    with ExitStack() as stack:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="punica-ranks-"))) / "store"
        ranks: dict[Connection, SpawnProcess] = {}
        for index in range(settings.num_ranks):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=run_rank, args=(Rank(index, settings.num_ranks), settings, store, sender), daemon=True
            )
            with ctrl_c_blocked():
                process.start()
            sender.close()
            stack.callback(end_process, process)
            ranks[receiver] = process
        yield from _receive(ranks)


def _receive(ranks: dict[Connection, SpawnProcess]) -> Iterator[ExchangeResult]:
    waiting = dict(ranks)
    while waiting:
        ready = wait(list(waiting), timeout=_SILENCE_S)
        if not ready:
            raise RuntimeError(f"no rank told anything for {_SILENCE_S:.0f} s; all were ended")
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                yield ExchangeResult(*receiver.recv())
            except EOFError:
                process = waiting.pop(receiver)
                process.join(_SILENCE_S)
                if process.exitcode:
                    raise RuntimeError(f"a rank ended with code {process.exitcode}; its message is above") from None
