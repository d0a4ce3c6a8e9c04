"""Runs `bench prompts`: the time from a prompt to its first token, by attention backend, engines in turn.

The steps of prompts that run by themselves, with all that the host does in them, make a table for
`engine.attention: auto`.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from rich.progress import Progress

from punica_serve.bench.driver import step
from punica_serve.bench.prompt_times import LaunchShape, PromptTimes
from punica_serve.bench.report import Column, Report, TableData, Value, machine, numbers
from punica_serve.bench.subject import Subject
from punica_serve.engine.engine import Engine
from punica_serve.performance.attention_table import write_table
from punica_serve.process.outputs import writing
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
    #: Prompts that come at once, and are prefilled together as far as the budget goes.
    together: int = 1

    @property
    def max_context(self) -> int:
        """Tokens of the longest request: the others go on for as long as the benchmark lasts."""
        prompts = self.together * sum(self.lengths) * (self.repeats + 1)
        return max(max(self.lengths) + 1, _OTHER_PROMPT + prompts // min(self.prefill_budget, 64) + len(self.lengths))


def run(subject: Subject, settings: PromptSettings, progress: Progress, table: Path | None = None) -> Report:
    """``table``: where to write the table for `engine.attention: auto`.

    Raises ConfigError if an engine can't be made or the table can't be written, RequestFailed if a request fails.
    """
    times = measure(subject, settings, progress)
    if table is not None:
        device = torch.cuda.get_device_name(subject.device) if subject.on_gpu else "cpu"
        with writing(table, "--table"):
            write_table(times.table(subject.model, f"{subject.dtype}".removeprefix("torch."), device), table)
    return make_report(times.ms, settings, machine(f"{subject.device}"))


def measure(subject: Subject, settings: PromptSettings, progress: Progress) -> PromptTimes:
    """Raises ConfigError if an engine can't be made, RequestFailed if a request fails."""
    total = len(settings.lengths) * settings.repeats * len(settings.backends)
    task = progress.add_task("prompts", total=total)
    times = PromptTimes()
    with _engines(subject, settings) as engines:
        numbers_of_requests = count()
        for length in settings.lengths:
            for _ in range(settings.repeats):
                for backend, engine in zip(settings.backends, engines, strict=True):
                    ms, steps = _time_prompts(engine, length, settings, next(numbers_of_requests))
                    times.add(length, backend, ms, steps)
                    progress.advance(task)
    return times


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
    together = f", {settings.together} prompts at once" if settings.together > 1 else ""
    title = f"To the first token, {settings.prefill_budget} prompt tokens a step{together}{beside}"
    table = TableData("prompts", title, columns, rows)
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
    pages = settings.together * (max(settings.lengths) // page_size + 2)
    pages += settings.num_others * (context // page_size + 2)
    try:
        for backend in settings.backends:
            changes = {
                "attention": backend,
                "prefill_budget_tokens": settings.prefill_budget,
                "max_prefills": settings.together,
                "max_batch_size": max(subject.config.max_batch_size, settings.together + settings.num_others),
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


def _time_prompts(
    engine: Engine, length: int, settings: PromptSettings, number: int
) -> tuple[float, list[tuple[LaunchShape, float]]]:
    """ms until all prompts have their first tokens, and the steps that had rows of prompts alone, with their µs."""
    vocab_size = engine.model_config.vocab_size
    ids = tuple(3 + position % (vocab_size - 3) for position in range(length))
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    names = [f"prompt-{number}-{nth}" for nth in range(settings.together)]
    steps: list[tuple[int, float]] = []
    started_s = last_s = time.perf_counter()
    for name in names:
        engine.add(Request(name, time.time_ns(), ids, params))
    unanswered = set(names)
    while unanswered:
        output = step(engine)
        if output.num_prefill_tokens:
            now_s = time.perf_counter()
            steps.append((output.num_prefill_tokens, 1e6 * (now_s - last_s)))
            last_s = now_s
        unanswered.difference_update(token.request_id for token in output.tokens)
    ms = 1e3 * (time.perf_counter() - started_s)
    return ms, [] if settings.num_others else _launch_shapes(steps, length, settings.together)


def _launch_shapes(steps: Sequence[tuple[int, float]], length: int, together: int) -> list[tuple[LaunchShape, float]]:
    """Those of one prompt, or of several that ran in one step: how others were shared among steps is not told."""
    if together == 1:
        contexts = accumulate(tokens for tokens, _ in steps)
        return [(LaunchShape(1, tokens, context), us) for (tokens, us), context in zip(steps, contexts, strict=True)]
    return [(LaunchShape(together, tokens, length), us) for tokens, us in steps if tokens == together * length]


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
