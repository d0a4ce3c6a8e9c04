"""What a bigger batch costs and brings: prefill and decode latency against batch size (Punica, figure 1).

Prefill: many prompts wait, and the time at which the n-th has its first token is the latency of n prompts. Decode: the
largest batch is filled, measured, and then made smaller and smaller by cancelling requests.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.progress import Progress

from punica_serve.bench.driver import step
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import told
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import Population

_PROMPT_SEED = 1
#: Of each batch size: not timed, timed.
_SETTLING_STEPS, _TIMED_STEPS = 4, 16
#: The first prefills of a length make what is made once.
_PREFILL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked of the benchmark."""

    #: Tokens of the prompts whose prefill is timed.
    prompts: tuple[int, ...] = (128, 512, 2048)
    #: Prompts that are prefilled together.
    prefill_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    #: Tokens that each request of a decode batch has in the KvCache.
    contexts: tuple[int, ...] = (128, 512, 2048)
    decode_batches: tuple[int, ...] = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
    #: Measured beside the base model alone, at the first of ``contexts``.
    populations: tuple[Population, ...] = (Population.IDENTICAL, Population.DISTINCT)
    rank: int = 16


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """``num_prompts`` prompts of one length, prefilled one after the other."""

    num_prompt_tokens: int
    num_prompts: int
    latency_s: float


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Decode steps of one batch."""

    #: "none", or the population of its adapters.
    adapters: str
    num_context_tokens: int
    batch_size: int
    step_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All that fitted the model and its KvCache."""

    prefills: tuple[PrefillTime, ...]
    decodes: tuple[DecodeTime, ...]


def run(subject: Subject, settings: Settings, progress: Progress) -> Measured:
    """Raises RequestFailed if any request fails."""
    prefills = _measure_prefills(subject, settings, progress)
    subject.free_memory()
    return Measured(prefills, _measure_decodes(subject, settings, progress))


def _measure_prefills(subject: Subject, settings: Settings, progress: Progress) -> tuple[PrefillTime, ...]:
    """On an engine whose batch is no larger than needed: a prefill's step has rows for as many decodes."""
    config = subject.sized(batch_size=max(settings.prefill_batches), rank=settings.rank, num_host=0, num_resident=1)
    config = config.model_copy(update={"prefill_budget_tokens": max(settings.prompts)})
    task = progress.add_task("prefill", total=len(settings.prompts))
    times: list[PrefillTime] = []
    with told(progress, "engine for prefills"):
        engine = Engine(config, str(subject.device))
    try:
        bench = _Bench(engine, config.page_size)
        for num_tokens in settings.prompts:
            times += bench.prefill(num_tokens, settings.prefill_batches)
            progress.advance(task)
    finally:
        engine.close()
    return tuple(times)


def _measure_decodes(subject: Subject, settings: Settings, progress: Progress) -> tuple[DecodeTime, ...]:
    largest = max(settings.decode_batches)
    config = subject.sized(batch_size=largest, rank=settings.rank, num_host=largest, num_resident=largest)
    config = config.model_copy(update={"prefill_budget_tokens": max(settings.contexts)})
    with told(progress, "engine for decodes"):
        engine = Engine(config, str(subject.device))
    try:
        task = progress.add_task("random adapters", total=largest)
        refs = fill_host_cache(engine, largest, settings.rank, subject.dtype, lambda: progress.advance(task))
        return _decode_cells(_Bench(engine, config.page_size), settings, refs, progress)
    finally:
        engine.close()


def _decode_cells(
    bench: "_Bench", settings: Settings, refs: Sequence[AdapterRef], progress: Progress
) -> tuple[DecodeTime, ...]:
    """The base alone at every context, then the populations at the first."""
    cells: list[tuple[str, int, Sequence[AdapterRef]]] = [("none", context, ()) for context in settings.contexts]
    for population in settings.populations:
        adapters = refs if population is Population.DISTINCT else refs[:1]
        cells.append((population.value, settings.contexts[0], adapters))
    task = progress.add_task("decode", total=len(cells))
    times: list[DecodeTime] = []
    for name, context, adapters in cells:
        progress.update(task, description=f"decode at {context} tokens, adapters: {name}")
        found = bench.decode(context, settings.decode_batches, adapters)
        times += [DecodeTime(name, context, size, step_s) for size, step_s in found]
        progress.advance(task)
    return tuple(times)


class _Bench:
    """One engine, and requests with names of their own."""

    def __init__(self, engine: Engine, page_size: int) -> None:
        self._engine = engine
        self._page_size = page_size
        self._tokens = np.random.default_rng(_PROMPT_SEED)
        self._num_requests = 0

    def prefill(self, num_tokens: int, batches: Sequence[int]) -> list[PrefillTime]:
        """None for prompts that are too long for the model."""
        if num_tokens >= self._engine.max_context:
            return []
        for _ in range(_PREFILL_ROUNDS):
            ends_s = self._first_tokens_s(num_tokens, max(batches))
        return [PrefillTime(num_tokens, count, ends_s[count - 1]) for count in batches]

    def decode(self, context: int, batches: Sequence[int], adapters: Sequence[AdapterRef]) -> list[tuple[int, float]]:
        """(batch size, median seconds of its steps), the largest first; batches that don't fit are left out."""
        num_steps = len(batches) * (_SETTLING_STEPS + _TIMED_STEPS)
        most = self._most_requests(context + num_steps)
        sizes = sorted((size for size in batches if size <= most), reverse=True)
        if not sizes or context + num_steps > self._engine.max_context:
            return []
        running = self._start_batch(sizes[0], context, num_steps, adapters)
        times = []
        for size in sizes:
            while len(running) > size:
                self._engine.cancel(running.pop())
            times.append((size, self._step_s(size)))
        for request_id in running:
            self._engine.cancel(request_id)
        return times

    def _first_tokens_s(self, num_tokens: int, count: int) -> list[float]:
        """When each of ``count`` prompts has its first token, from the moment at which all are there."""
        requests = [self._request(num_tokens, 1, None) for _ in range(count)]
        started_s = time.perf_counter()
        for request in requests:
            self._engine.add(request)
        ends_s: list[float] = []
        while self._engine.num_requests:
            num_ended = len(step(self._engine).tokens)
            ends_s += [time.perf_counter() - started_s] * num_ended
        return ends_s

    def _most_requests(self, num_tokens: int) -> int:
        """How many requests of so many tokens the KvCache holds."""
        pages_each = -(-num_tokens // self._page_size)
        return self._engine.num_kv_pages // pages_each

    def _start_batch(self, size: int, context: int, num_steps: int, adapters: Sequence[AdapterRef]) -> list[str]:
        """Adds requests and steps until all of them decode, each then with about ``context`` tokens."""
        # Those that are prefilled first decode while the others are prefilled.
        prompts = [max(1, context - (size - 1 - number)) for number in range(size)]
        refs = [adapters[number % len(adapters)] if adapters else None for number in range(size)]
        requests = [
            self._request(prompt, context - prompt + num_steps, ref) for prompt, ref in zip(prompts, refs, strict=True)
        ]
        for request in requests:
            self._engine.add(request)
        started: set[str] = set()
        while len(started) < size:
            output = step(self._engine)
            started.update(token.request_id for token in output.tokens)
            if not output.has_run:
                self._engine.wait(1.0)
        return [request.request_id for request in requests]

    def _step_s(self, size: int) -> float:
        """Median time from one step's tokens to the next one's."""
        times: list[float] = []
        last_s = time.perf_counter()
        for number in range(_SETTLING_STEPS + _TIMED_STEPS):
            output = step(self._engine)
            now_s = time.perf_counter()
            if number >= _SETTLING_STEPS and output.batch_size == size:
                times.append(now_s - last_s)
            last_s = now_s
        return statistics.median(times)

    def _request(self, num_prompt_tokens: int, num_output_tokens: int, ref: AdapterRef | None) -> Request:
        self._num_requests += 1
        prompt = self._tokens.integers(self._engine.model_config.vocab_size, size=num_prompt_tokens)
        params = SamplingParams(max_tokens=num_output_tokens, ignore_eos=True)
        return Request(f"{self._num_requests}", self._num_requests, tuple(prompt.tolist()), params, ref)
