"""Text generation on one device: tokens per second for the paper's four populations, alone and batched (Punica, 7.2).

Closed loop: as many requests in flight as the cell says, a new one for each that ends. All adapters are on the device
before the clock starts. Cells take turns over several rounds, so that a machine's moods fall on all of them alike; the
figure of a cell is the median of its rounds.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.config import EngineConfig
from punica_serve.engine.engine import Engine, StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.lora_layout import pages_needed
from punica_serve.model_config import read_model_config
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import Population, adapter_indices

_ADAPTER_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Workload:
    """What every cell runs."""

    rank: int = 16
    num_prompt_tokens: int = 32
    num_output_tokens: int = 64
    #: Requests in flight of the batched cells; the others have one.
    concurrency: int = 32
    num_rounds: int = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """One population at one number of requests in flight."""

    population: Population
    concurrency: int

    @property
    def num_requests(self) -> int:
        """Enough batched ones for a steady state; few single ones, which take as long each."""
        return 3 * self.concurrency if self.concurrency > 1 else 4


@dataclass(frozen=True, slots=True)
class Measurement:
    """A cell's figures, medians over the rounds."""

    population: str
    concurrency: int
    #: Different adapters among the requests of a round.
    num_adapters: int
    tokens_per_s: float
    #: Lowest and highest round.
    tokens_per_s_range: tuple[float, float]
    mean_batch_size: float


@dataclass(frozen=True, slots=True)
class _Round:
    num_adapters: int
    tokens_per_s: float
    mean_batch_size: float


def run(config: EngineConfig, workload: Workload, device: str, progress: Progress) -> list[Measurement]:
    """Measures all cells, with random adapters that are made for it and removed after it.

    Raises RequestFailed if any request fails: a figure without it would be of something else.
    """
    cells = [Cell(population, count) for population in Population for count in (1, workload.concurrency)]
    with tempfile.TemporaryDirectory(prefix="punica-bench-") as folder:
        adapters = _make_adapters(config.model, Path(folder), workload)
        engine = Engine(_with_room_for(adapters, config), device)
        try:
            _bring(engine, adapters)
            rounds = _run_rounds(engine, cells, adapters, workload, progress)
        finally:
            engine.close()
    return [_summary(cell, rounds[cell]) for cell in cells]


def _run_rounds(
    engine: Engine, cells: Sequence[Cell], adapters: Sequence[AdapterRef], workload: Workload, progress: Progress
) -> dict[Cell, list[_Round]]:
    rounds: dict[Cell, list[_Round]] = {cell: [] for cell in cells}
    task = progress.add_task("textgen", total=len(cells) * (workload.num_rounds + 1))
    for number in range(workload.num_rounds + 1):
        for cell in cells:
            progress.update(task, description=f"{cell.population} x{cell.concurrency}")
            measured = _run_cell(engine, cell, adapters, workload)
            if number > 0:  # the first round warms caches up
                rounds[cell].append(measured)
            progress.advance(task)
    return rounds


def _run_cell(engine: Engine, cell: Cell, adapters: Sequence[AdapterRef], workload: Workload) -> _Round:
    requests = _requests(cell, adapters, workload, engine.model_config.vocab_size)
    num_adapters = len({request.adapter.digest for request in requests if request.adapter})
    waiting = iter(requests)
    num_tokens = num_steps = num_rows = 0
    started_s = time.perf_counter()
    while True:
        while engine.num_requests < cell.concurrency and (request := next(waiting, None)):
            engine.add(request)
        if not engine.num_requests:
            break
        output = _step(engine)
        num_tokens += len(output.tokens)
        num_steps += 1
        num_rows += output.batch_size
    return _Round(num_adapters, num_tokens / (time.perf_counter() - started_s), num_rows / num_steps)


def _step(engine: Engine) -> StepOutput:
    output = engine.step()
    for failure in output.failures:
        raise RequestFailed(f"a request of the benchmark failed: {failure.error.message}")
    return output


def _requests(cell: Cell, adapters: Sequence[AdapterRef], workload: Workload, vocab_size: int) -> list[Request]:
    """Each window of ``concurrency`` requests has the population's shape, so each batch has it too."""
    params = SamplingParams(max_tokens=workload.num_output_tokens, ignore_eos=True)
    windows = (adapter_indices(cell.population, workload.concurrency, seed=window) for window in itertools.count())
    indices = itertools.islice(itertools.chain.from_iterable(windows), cell.num_requests)
    return [
        Request(f"{number}", number, _prompt(number, workload, vocab_size), params, adapters[index])
        for number, index in enumerate(indices)
    ]


def _prompt(number: int, workload: Workload, vocab_size: int) -> tuple[int, ...]:
    return tuple((number * 7 + token * 3) % vocab_size for token in range(workload.num_prompt_tokens))


def _make_adapters(model_folder: Path, folder: Path, workload: Workload) -> list[AdapterRef]:
    """As many as Distinct needs."""
    model = read_model_config(model_folder)
    return [
        read_adapter(write_random_adapter(folder / f"{seed}", model, rank=workload.rank, seed=seed), model).ref
        for seed in range(workload.concurrency)
    ]


def _with_room_for(adapters: Sequence[AdapterRef], config: EngineConfig) -> EngineConfig:
    """The same config with a LoRA pool that holds all adapters at once: loading is not what is measured here."""
    pages = sum(max(pages_needed(ref.ranks).values()) for ref in adapters)
    return config.model_copy(update={"num_lora_pages": max(pages, config.num_lora_pages)})


def _bring(engine: Engine, adapters: Sequence[AdapterRef]) -> None:
    """Loads every adapter by running one request on it. Raises RequestFailed if one fails, or all take too long."""
    for number, ref in enumerate(adapters):
        engine.add(Request(f"warm-{number}", number, (1,), SamplingParams(max_tokens=1, ignore_eos=True), ref))
    deadline_s = time.monotonic() + _ADAPTER_DEADLINE_S
    while engine.num_requests:
        if time.monotonic() > deadline_s:
            raise RequestFailed(f"the adapters are not on the device after {_ADAPTER_DEADLINE_S:g} s")
        if _step(engine).batch_size == 0:
            engine.wait(1.0)


def _summary(cell: Cell, rounds: Sequence[_Round]) -> Measurement:
    speeds = [measured.tokens_per_s for measured in rounds]
    return Measurement(
        population=cell.population.value,
        concurrency=cell.concurrency,
        num_adapters=rounds[0].num_adapters,
        tokens_per_s=statistics.median(speeds),
        tokens_per_s_range=(min(speeds), max(speeds)),
        mean_batch_size=statistics.median(measured.mean_batch_size for measured in rounds),
    )
