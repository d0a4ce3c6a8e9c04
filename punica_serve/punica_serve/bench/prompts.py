"""Runs `bench prompts`: the time from a prompt to its first token, by attention backend, engines in turn."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from rich.progress import Progress

from punica_serve.bench.driver import step
from punica_serve.bench.report import Column, Report, TableData, Value, machine, numbers
from punica_serve.bench.subject import Subject
from punica_serve.engine.engine import Engine
from punica_serve.protocol import Request, SamplingParams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Tokens of the prompts of those that decode meanwhile.
_OTHER_PROMPT = 128


@dataclass(frozen=True, slots=True)
class PromptSettings:
    lengths: tuple[int, ...]
    backends: tuple[str, ...]
    #: Prompt tokens in one step.
    prefill_budget: int
    #: Requests that decode meanwhile.
    num_others: int
    #: Prompts of each length and engine; the results are the least time.
    repeats: int

    @property
    def max_context(self) -> int:
        """Tokens of the longest request: the others go on for as long as the benchmark lasts."""
        prompts = sum(self.lengths) * (self.repeats + 1)
        return max(max(self.lengths) + 1, _OTHER_PROMPT + prompts // min(self.prefill_budget, 64) + len(self.lengths))


def run(subject: Subject, settings: PromptSettings, progress: Progress) -> Report:
    """Raises ConfigError if an engine can't be made, RequestFailed if a request fails."""
    total = len(settings.lengths) * settings.repeats * len(settings.backends)
    task = progress.add_task("prompts", total=total)
    times: dict[tuple[int, str], float] = {}
    with _engines(subject, settings) as engines:
        numbers_of_requests = count()
        for length in settings.lengths:
            for _ in range(settings.repeats):
                for backend, engine in zip(settings.backends, engines, strict=True):
                    ms = _prompt_ms(engine, length, next(numbers_of_requests))
                    times[length, backend] = min(ms, times.get((length, backend), ms))
                    progress.advance(task)
    return make_report(times, settings, machine(f"{subject.device}"))


def make_report(times: dict[tuple[int, str], float], settings: PromptSettings, facts: dict[str, Value]) -> Report:
    """``times``: ms by length and backend."""
    first, *others = settings.backends
    columns = (
        Column("tokens", "prompt tokens", ",d"),
        *(Column(f"{backend}_ms", f"{backend}, ms", ".2f") for backend in settings.backends),
        *(Column(f"{first}_over_{backend}", f"{first} over {backend}", ".3f") for backend in others),
    )
    rows = [_row(length, times, settings.backends) for length in settings.lengths]
    beside = f", beside {settings.num_others} decodes" if settings.num_others else ""
    table = TableData(
        "prompts", f"To the first token, {settings.prefill_budget} prompt tokens a step{beside}", columns, rows
    )
    return Report("prompts", facts, asdict(settings), [table], {"": partial(_draw, table, settings.backends)})


def _row(length: int, times: dict[tuple[int, str], float], backends: Sequence[str]) -> tuple[Value, ...]:
    own = [times[length, backend] for backend in backends]
    return (length, *own, *(own[0] / other for other in own[1:]))


@contextmanager
def _engines(subject: Subject, settings: PromptSettings) -> Iterator[list[Engine]]:
    """An engine for each backend, beside each other on the device, with its other requests."""
    engines: list[Engine] = []
    context = min(settings.max_context, subject.model.max_position_embeddings)
    page_size = subject.config.page_size
    pages = (max(settings.lengths) // page_size + 2) + settings.num_others * (context // page_size + 2)
    try:
        for backend in settings.backends:
            changes = {
                "attention": backend,
                "prefill_budget_tokens": settings.prefill_budget,
                "num_kv_pages": max(pages, context // page_size + 1),
                "max_context": context,
            }
            engine = Engine(subject.config.model_copy(update=changes), f"{subject.device}")
            engines.append(engine)
            _start_others(engine, settings.num_others, context - _OTHER_PROMPT)
        yield engines
    finally:
        for engine in engines:
            engine.close()


def _start_others(engine: Engine, num_others: int, max_tokens: int) -> None:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    for number in range(num_others):
        prompt = tuple(range(1, _OTHER_PROMPT + 1))
        engine.add(Request(f"other-{number}", number, prompt, params))
        while not any(token.request_id == f"other-{number}" for token in step(engine).tokens):
            pass


def _prompt_ms(engine: Engine, length: int, number: int) -> float:
    vocab_size = engine.model_config.vocab_size
    ids = tuple(3 + position % (vocab_size - 3) for position in range(length))
    request = Request(f"prompt-{number}", time.time_ns(), ids, SamplingParams(max_tokens=1, ignore_eos=True))
    started_s = time.perf_counter()
    engine.add(request)
    while not any(token.request_id == request.request_id for token in step(engine).tokens):
        pass
    return 1e3 * (time.perf_counter() - started_s)


def _draw(table: TableData, backends: Sequence[str], figure: "Figure") -> None:
    axes = figure.subplots()
    for backend in backends:
        axes.plot(numbers(table.records, "tokens"), numbers(table.records, f"{backend}_ms"), "o-", label=backend)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("to the first token, ms")
    axes.grid(alpha=0.3)
    axes.legend()
