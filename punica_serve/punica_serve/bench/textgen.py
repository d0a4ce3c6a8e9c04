"""Text generation on one device: the throughput of a queue of requests, for different populations (figure 11).

All requests of the shipped workload wait at the start and are answered first come, first served, with exactly the
workload's number of tokens: greedily, except for the row ``filtered``. Adapters are random, each with unique bytes in
host memory, or in files. Rows take turns over the rounds; a row's results are those of its median round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from rich.progress import Progress

from punica_kernels.bench.timing import copy_bytes_per_s, matmul_flop_per_s
from punica_serve.bench.driver import MaxConcurrency, RunTimes, drive, preload
from punica_serve.bench.host_adapters import fill_ranks
from punica_serve.bench.random_adapters import adapter_files, write_folders
from punica_serve.bench.step_floor import DeviceRates
from punica_serve.bench.subject import Subject
from punica_serve.bench.textgen_rows import ROWS, TextgenRow, fit, requests_of
from punica_serve.bench.token_bar import TokenBar, timed
from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.launch_times import Phase
from punica_serve.errors import RequestFailed
from punica_serve.process.memory_tuning import frozen_gc
from punica_serve.protocol import AdapterRef, Request
from punica_serve.workload import Population, RequestLength, Workload, shipped_workload

_WARM_UP_REQUESTS, _WARM_UP_TOKENS = 64, 8
#: A long context would take minutes to warm up, and shows nothing new.
_MAX_WARM_UP_PROMPT = 1024


@dataclass(frozen=True, slots=True)
class TextgenSettings:
    """The benchmark's options."""

    rows: tuple[str, ...]
    num_requests: int = 1000
    rank: int = 16
    #: Requests in one step.
    batch_size: int = 32
    num_rounds: int = 1
    #: Length of every request, instead of the workload's.
    length: RequestLength | None = None
    #: Adapters in host memory are loaded on the device before the clock starts, in every row.
    resident: bool = False
    #: Folder for temporary adapter files; None means the system's.
    folder: Path | None = None

    @property
    def is_of_the_goals(self) -> bool:
        """Whether the goals and other systems' results are for the same requests."""
        return self.has_steps_of_the_goals and (self.num_requests, self.resident) == (1000, False)

    @property
    def has_steps_of_the_goals(self) -> bool:
        """Whether steps are of the batch, rank and lengths of the goals, over however many requests."""
        return self.length is None and (self.rank, self.batch_size) == (16, 32)


@dataclass(frozen=True, slots=True)
class RowTimes:
    """A row and its rounds."""

    row: TextgenRow
    num_requests: int
    #: Different adapters among its requests.
    num_adapters: int
    rounds: tuple[RunTimes, ...]

    @property
    def median(self) -> RunTimes:
        """The round of median speed; the lower one of two."""
        return sorted(self.rounds, key=lambda times: times.tokens_per_s)[(len(self.rounds) - 1) // 2]


@dataclass(frozen=True, slots=True)
class TextgenMeasured:
    """The measurements of all engine rows."""

    rows: tuple[RowTimes, ...]
    #: None if the device has no such rates.
    rates: DeviceRates | None
    workload: Workload
    #: Rows that could not be measured, and why.
    failures: tuple[str, ...] = ()
    #: See ``Engine.launch_lags_us``.
    launch_lags_us: Mapping[Phase, Sequence[float]] = field(default_factory=dict)


_Stock = Mapping[str, Sequence[AdapterRef]]


def run(subject: Subject, settings: TextgenSettings, progress: Progress) -> TextgenMeasured:
    """Runs the rows that need an engine. A row in which a request fails is not measured; the other rows go on."""
    rates = _rates(subject)
    rows = [ROWS[name] for name in settings.rows if name in ROWS]
    workload = _workload(subject, settings)
    counts = {source: _num_adapters(rows, workload, source) for source in ("host", "files")}
    counts["host"] = max(counts["host"], settings.batch_size)  # used by the warm-up
    resident = max((len(set(row.indices(workload))) for row in rows if _is_resident(row, settings)), default=0)
    config = subject.sized(
        batch_size=settings.batch_size,
        rank=settings.rank,
        num_host=max(counts.values()),
        # Room for loads beside a batch: at large batches, four of them would take the KvCache's memory.
        num_resident=max(resident, min(4 * settings.batch_size, settings.batch_size + 128)),
    )
    with adapter_files(settings.folder) as folder:
        engine = subject.open_engine(config, progress.console.print)
        progress.console.print(f"engine: ready in {engine.start_times}", highlight=False)
        try:
            with timed(progress, f"{sum(counts.values())} adapters"):
                stock = _make_adapters(engine, subject, counts, settings.rank, folder, progress)
            _warm_up(engine, stock["host"][-settings.batch_size :], workload)
            with frozen_gc():
                times, failures = _run_rounds(engine, rows, workload, stock, settings, progress)
            lags_us = engine.launch_lags_us()
        finally:
            engine.close()
    return TextgenMeasured(times, rates, workload, failures, lags_us)


def _rates(subject: Subject) -> DeviceRates | None:
    """A GPU's rates; None of others, where caches decide."""
    if not subject.on_gpu:
        return None
    torch.cuda.set_device(subject.device)
    rates = DeviceRates(copy_bytes_per_s(subject.device), matmul_flop_per_s(subject.device, subject.dtype))
    subject.free_memory()
    return rates


def _workload(subject: Subject, settings: TextgenSettings) -> Workload:
    shipped = shipped_workload(settings.num_requests)
    if settings.length is not None:
        shipped = replace(shipped, lengths=(settings.length,) * settings.num_requests)
    return fit(shipped, subject.config.context_of(subject.model))


def _is_resident(row: TextgenRow, settings: TextgenSettings) -> bool:
    return row.source == "host" and (row.resident or settings.resident)


def _num_adapters(rows: Sequence[TextgenRow], workload: Workload, source: str) -> int:
    """Number of adapters that the rows need from this source."""
    return max((1 + max(row.indices(workload), default=-1) for row in rows if row.source == source), default=0)


def _make_adapters(
    engine: Engine, subject: Subject, counts: Mapping[str, int], rank: int, folder: Path, progress: Progress
) -> _Stock:
    task = progress.add_task("random adapters", total=sum(counts.values()))
    stock = {
        # Files first, so that the page cache gives way to the host cache, not the other way round.
        "files": write_folders(
            folder, subject.model.whole, counts["files"], rank, subject.device, lambda: progress.advance(task)
        ),
        "host": fill_ranks(engine, counts["host"], rank, subject.dtype, lambda: progress.advance(task)),
    }
    progress.remove_task(task)
    return stock


def _warm_up(engine: Engine, adapters: Sequence[AdapterRef], workload: Workload) -> None:
    """Runs short answers with and without adapters, so that all one-time work happens before the clock starts."""
    short = Workload(
        tuple(RequestLength(min(prompt, _MAX_WARM_UP_PROMPT), _WARM_UP_TOKENS) for prompt, _ in workload.lengths),
        {Population.DISTINCT: tuple(number % len(adapters) for number in range(_WARM_UP_REQUESTS))},
    )
    for population in (None, Population.DISTINCT):
        row = TextgenRow("warm-up", population, max_requests=_WARM_UP_REQUESTS)
        requests = requests_of(row, short, adapters, vocab_size=engine.model_config.vocab_size, run="warm-up")
        drive(engine, MaxConcurrency(requests), lambda _: None)


def _run_rounds(
    engine: Engine,
    rows: Sequence[TextgenRow],
    workload: Workload,
    stock: _Stock,
    settings: TextgenSettings,
    progress: Progress,
) -> tuple[tuple[RowTimes, ...], tuple[str, ...]]:
    """The rows with all their rounds, and the failures."""
    bar = TokenBar(progress)
    turns = _turns(rows, settings.num_rounds)
    task = progress.add_task("textgen", total=len(turns))
    times: dict[str, RowTimes] = {}
    failures: list[str] = []
    vocab_size = engine.model_config.vocab_size
    for number, row in enumerate(turns):
        requests = requests_of(row, workload, stock[row.source], vocab_size=vocab_size, run=f"{number}")
        bar.start(row.name, sum(request.sampling.max_tokens for request in requests))
        try:
            measured = _run_row(engine, row, requests, settings, bar)
            earlier = times[row.name].rounds if row.name in times else ()
            times[row.name] = RowTimes(row, len(requests), len(_adapters_of(requests)), (*earlier, measured))
            progress.console.print(f"{row.name}: {measured.tokens_per_s:,.0f} tokens/s in {measured.seconds:.1f} s")
        except RequestFailed as error:
            failures.append(f"{row.name}: {error.message}")
        progress.advance(task)
    return tuple(times.values()), tuple(failures)


def _turns(rows: Sequence[TextgenRow], num_rounds: int) -> list[TextgenRow]:
    """Round by round; at the end, once, the rows from files, which replace the others' adapters in host memory."""
    from_host = [row for row in rows if row.source == "host"]
    return from_host * num_rounds + [row for row in rows if row.source == "files"]


def _run_row(
    engine: Engine, row: TextgenRow, requests: Sequence[Request], settings: TextgenSettings, bar: TokenBar
) -> RunTimes:
    if _is_resident(row, settings):
        preload(engine, _adapters_of(requests))
    return drive(engine, row.start(requests, settings.batch_size), bar.on_step)


def _adapters_of(requests: Sequence[Request]) -> list[AdapterRef]:
    """The different adapters."""
    return list({request.adapter.digest: request.adapter for request in requests if request.adapter}.values())
