"""The cost and benefit of larger batches: prefill and decode latency against batch size (Punica, figure 1).

Prefill: many prompts wait; the latency of n prompts is the time to the n-th first token. Decode: each batch is filled
anew, with prompts sized so that its timed steps have the requested context on average.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.progress import Progress

from punica_serve.bench.driver import preload, step
from punica_serve.bench.group_process import measure_in_process
from punica_serve.bench.host_adapters import fill_ranks
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import Population

_PROMPT_SEED = 1
#: Decode steps per batch size: untimed, timed.
_SETTLING_STEPS, _TIMED_STEPS = 4, 16
#: Steps from the last prefill to the middle of the timed ones; prompts are this much shorter than the context.
_LEAD_STEPS = _SETTLING_STEPS + _TIMED_STEPS // 2
#: The first prefills of a length include one-time work.
_PREFILL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """The benchmark's options."""

    #: Lengths in tokens of the prompts whose prefill is timed.
    prompts: tuple[int, ...] = (128, 512, 2048)
    #: Numbers of prompts that are prefilled together.
    prefill_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    #: KvCache tokens per request of a decode batch.
    contexts: tuple[int, ...] = (128, 512, 2048)
    decode_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    #: Measured besides the base model alone, at the first of ``contexts``.
    populations: tuple[Population, ...] = (Population.IDENTICAL, Population.DISTINCT)
    #: Distinct adapters are measured here too: the context by which `max_batch_size: auto` chooses.
    auto_context: int | None = None
    rank: int = 16


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """The time to prefill ``num_prompts`` prompts of one length, one after the other."""

    num_prompt_tokens: int
    num_prompts: int
    latency_s: float


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """The decode steps of one batch."""

    #: "none", or the population of its adapters.
    adapters: str
    num_context_tokens: int
    batch_size: int
    step_s: float
    #: KvCache tokens per request, averaged over requests and timed steps.
    mean_context_tokens: float


@dataclass(frozen=True, slots=True)
class BatchingMeasured:
    """All cases that fit the model and its KvCache."""

    prefills: tuple[PrefillTime, ...]
    decodes: tuple[DecodeTime, ...]


def run(subject: Subject, settings: BatchingSettings, progress: Progress) -> BatchingMeasured:
    """Raises RequestFailed if any request fails."""
    prefills = measure_in_process(subject, partial(_measure_prefills, subject, settings), progress)
    return BatchingMeasured(
        prefills, measure_in_process(subject, partial(_measure_decodes, subject, settings), progress)
    )


def _measure_prefills(subject: Subject, settings: BatchingSettings, progress: Progress) -> tuple[PrefillTime, ...]:
    """Uses an engine with no larger batch than needed, since a prefill's step also has a row for each decode."""
    config = subject.sized(batch_size=max(settings.prefill_batches), rank=settings.rank, num_host=0, num_resident=1)
    config = config.model_copy(update={"prefill_budget_tokens": max(settings.prompts)})
    task = progress.add_task("prefill", total=len(settings.prompts))
    times: list[PrefillTime] = []
    with timed(progress, "engine for prefills"):
        engine = subject.open_engine(config)
    try:
        bench = EngineBench(engine, config.page_size)
        for num_tokens in settings.prompts:
            times += bench.prefill(num_tokens, settings.prefill_batches)
            progress.advance(task)
    finally:
        engine.close()
    return tuple(times)


def _measure_decodes(subject: Subject, settings: BatchingSettings, progress: Progress) -> tuple[DecodeTime, ...]:
    largest = max(settings.decode_batches)
    num_adapters = largest if settings.populations or settings.auto_context is not None else 1
    config = subject.sized(batch_size=largest, rank=settings.rank, num_host=num_adapters, num_resident=num_adapters)
    # Prompts are sized for batches that one request joins in each step.
    config = config.model_copy(update={"prefill_budget_tokens": max(settings.contexts), "max_prefills": 1})
    with timed(progress, "engine for decodes"):
        engine = subject.open_engine(config)
    try:
        task = progress.add_task("random adapters", total=num_adapters)
        refs = fill_ranks(engine, num_adapters, settings.rank, subject.dtype, lambda: progress.advance(task))
        return _decode_cells(EngineBench(engine, config.page_size), settings, refs, progress)
    finally:
        engine.close()


def _decode_cells(
    bench: "EngineBench", settings: BatchingSettings, refs: Sequence[AdapterRef], progress: Progress
) -> tuple[DecodeTime, ...]:
    """The base model alone at every context, then the populations at the first, then distinct adapters for `auto`."""
    cells: list[tuple[str, int, Sequence[AdapterRef]]] = [("none", context, ()) for context in settings.contexts]
    for population in settings.populations:
        adapters = refs if population is Population.DISTINCT else refs[:1]
        cells.append((population.value, settings.contexts[0], adapters))
    context = settings.auto_context
    if context is not None and ("distinct", context) not in [cell[:2] for cell in cells]:
        cells.append(("distinct", context, refs))
    task = progress.add_task("decode", total=len(cells))
    times: list[DecodeTime] = []
    for name, context, adapters in cells:
        progress.update(task, description=f"decode at {context} tokens, adapters: {name}")
        found = bench.decode(context, settings.decode_batches, adapters)
        times += [DecodeTime(name, context, *measured) for measured in found]
        progress.advance(task)
    return tuple(times)


class EngineBench:
    """One engine, with unique names for its requests."""

    def __init__(self, engine: Engine, page_size: int) -> None:
        self._engine = engine
        self._page_size = page_size
        self._tokens = np.random.default_rng(_PROMPT_SEED)
        self._num_requests = 0

    def prefill(self, num_tokens: int, batches: Sequence[int]) -> list[PrefillTime]:
        """Empty if the prompts are too long for the model."""
        if num_tokens >= self._engine.max_context:
            return []
        for _ in range(_PREFILL_ROUNDS):
            ends_s = self._first_tokens_s(num_tokens, max(batches))
        return [PrefillTime(num_tokens, count, ends_s[count - 1]) for count in batches]

    def decode(
        self, context: int, batches: Sequence[int], adapters: Sequence[AdapterRef]
    ) -> list[tuple[int, float, float]]:
        """(batch size, median seconds of its steps, mean context), the largest first; sizes that don't fit are left
        out.
        """
        preload(self._engine, adapters)
        sizes = [size for size in sorted(batches, reverse=True) if self.has_room_for(size, context)]
        return [(size, *self.measure_batch(size, context, adapters)) for size in sizes]

    def _first_tokens_s(self, num_tokens: int, count: int) -> list[float]:
        """Times to first token of ``count`` prompts that are all added at the start."""
        requests = [self._request(num_tokens, 1, None) for _ in range(count)]
        started_s = time.perf_counter()
        for request in requests:
            self._engine.add(request)
        ends_s: list[float] = []
        while self._engine.num_requests:
            num_ended = len(step(self._engine).tokens)
            ends_s += [time.perf_counter() - started_s] * num_ended
        return ends_s

    def has_room_for(self, size: int, context: int) -> bool:
        """Whether a batch of so many requests fits the KvCache."""
        longest = _longest(size, context)
        pages_each = -(-longest // self._page_size)
        return longest <= self._engine.max_context and size * pages_each <= self._engine.num_kv_pages

    def measure_batch(self, size: int, context: int, adapters: Sequence[AdapterRef]) -> tuple[float, float]:
        """Median seconds of a step, and the mean context, of a separate batch that is removed afterwards.

        ``adapters`` are dealt to its rows in turn; they must be on the device. None are for the base model.
        """
        prompts = self._start_batch(size, context, adapters)
        try:
            return self._time_steps(prompts)
        finally:
            for request_id in prompts:
                self._engine.cancel(request_id)
            # The device must be idle before the next batch is filled.
            while step(self._engine).has_run:
                pass

    def _start_batch(self, size: int, context: int, adapters: Sequence[AdapterRef]) -> dict[str, int]:
        """Adds requests and runs steps until all of them decode. Returns each request's prompt tokens."""
        # Each step prefills one request while those before it decode, so earlier requests get shorter prompts. A prompt
        # of one token would count as a decode and not wait for its turn.
        prompts = [max(2, context - _LEAD_STEPS - (size - 1 - number)) for number in range(size)]
        refs = [adapters[number % len(adapters)] if adapters else None for number in range(size)]
        longest = _longest(size, context)
        requests = [self._request(prompt, longest - prompt, ref) for prompt, ref in zip(prompts, refs, strict=True)]
        for request in requests:
            self._engine.add(request)
        started: set[str] = set()
        while len(started) < size:
            output = step(self._engine)
            started.update(token.request_id for token in output.tokens)
            if not output.has_run:
                self._engine.wait(1.0)
        return {request.request_id: len(request.prompt_ids) for request in requests}

    def _time_steps(self, prompts: dict[str, int]) -> tuple[float, float]:
        """Median time between the tokens of consecutive steps, and the mean context of a row in these steps."""
        times: list[float] = []
        contexts: list[int] = []
        last_s = time.perf_counter()
        for number in range(_SETTLING_STEPS + _TIMED_STEPS):
            output = step(self._engine)
            now_s = time.perf_counter()
            if number >= _SETTLING_STEPS and output.batch_size == len(prompts):
                times.append(now_s - last_s)
                contexts += [prompts[token.request_id] + token.position for token in output.tokens]
            last_s = now_s
        return statistics.median(times), statistics.mean(contexts)

    def _request(self, num_prompt_tokens: int, num_output_tokens: int, ref: AdapterRef | None) -> Request:
        self._num_requests += 1
        prompt = self._tokens.integers(self._engine.model_config.vocab_size, size=num_prompt_tokens)
        params = SamplingParams(max_tokens=num_output_tokens, ignore_eos=True)
        return Request(f"{self._num_requests}", self._num_requests, tuple(prompt.tolist()), params, ref)


def _longest(size: int, context: int) -> int:
    """Tokens of a batch's longest request at its last timed step, and a few more.

    In a batch larger than the context, the first requests exceed the context, as they wait for the others' prefills.
    """
    return max(context, size + _LEAD_STEPS) + _TIMED_STEPS
