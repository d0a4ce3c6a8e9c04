"""Runs requests through an engine, in the order in which a policy adds them, and times every step.

A policy stands for the code in front of an engine: it decides when to add a request; the engine batches what it has.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: How long to wait for an adapter before checking again; its arrival ends the wait.
_WAIT_S = 1.0

#: Called after every step; its cost is part of the measurement.
OnStep = Callable[[StepOutput], None]


class Policy(Protocol):
    """Decides when requests start."""

    def due(self, num_unfinished: int) -> Iterable[Request]:
        """Requests to add before the next step, when ``num_unfinished`` of the earlier ones are unfinished."""
        ...


class MaxConcurrency:
    """First come, first served, with at most ``limit`` requests in the engine; all at once without a limit."""

    def __init__(self, requests: Iterable[Request], limit: int | None = None) -> None:
        self._waiting = deque(requests)
        self._limit = len(self._waiting) if limit is None else limit

    def due(self, num_unfinished: int) -> list[Request]:
        return _take(self._waiting, self._limit - num_unfinished)


class StaticBatches:
    """Batches whose requests start together; the next one starts when the longest request has ended (Punica, figure 6).

    Kinder than real systems of this kind: an ended request costs no more computation.
    """

    def __init__(self, requests: Iterable[Request], batch_size: int) -> None:
        self._waiting = deque(requests)
        self._batch_size = batch_size

    def due(self, num_unfinished: int) -> list[Request]:
        return [] if num_unfinished else _take(self._waiting, self._batch_size)


class SameAdapterOnly:
    """First come, first served, but all running requests share one adapter, as in systems without SGMV.

    A request for another adapter waits, with all behind it, until nothing runs.
    """

    def __init__(self, requests: Iterable[Request], batch_size: int) -> None:
        self._waiting = deque(requests)
        self._batch_size = batch_size
        self._running: AdapterRef | None = None

    def due(self, num_unfinished: int) -> list[Request]:
        if not num_unfinished and self._waiting:
            self._running = self._waiting[0].adapter
        due: list[Request] = []
        while (
            self._waiting and num_unfinished + len(due) < self._batch_size and self._waiting[0].adapter == self._running
        ):
            due.append(self._waiting.popleft())
        return due


@dataclass(frozen=True, slots=True)
class StepTime:
    """One finished step."""

    #: Time from the tokens of the step before, or from the end of an idle time, to its own.
    duration_s: float
    batch_size: int
    num_prefill_tokens: int
    num_adapters: int
    #: KvCache tokens that its decodes read.
    num_context_tokens: int


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of a set of requests."""

    seconds: float
    num_tokens: int
    steps: tuple[StepTime, ...]

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decode_steps(self) -> list[StepTime]:
        """The steps without a prefill."""
        return [step for step in self.steps if not step.num_prefill_tokens]

    @property
    def mixed_steps(self) -> list[StepTime]:
        """The steps with a prefill."""
        return [step for step in self.steps if step.num_prefill_tokens]

    @property
    def mean_batch_size(self) -> float:
        return sum(step.batch_size for step in self.steps) / len(self.steps)


def drive(engine: Engine, policy: Policy, on_step: OnStep) -> RunTimes:
    """Runs all of a policy's requests to their ends.

    Raises RequestFailed, after cancelling the others, if any fails: the result would not be comparable.
    """
    num_prompt: dict[str, int] = {}
    try:
        return _drive(engine, policy, on_step, num_prompt)
    finally:
        for request_id in num_prompt:
            engine.cancel(request_id)


def _drive(engine: Engine, policy: Policy, on_step: OnStep, num_prompt: dict[str, int]) -> RunTimes:
    """Fills ``num_prompt`` with the prompt tokens of every request that is added."""
    steps: list[StepTime] = []
    num_tokens = 0
    started_s = last_s = time.perf_counter()
    while True:
        for request in policy.due(engine.num_requests):
            num_prompt[request.request_id] = len(request.prompt_ids)
            engine.add(request)
        if not engine.num_requests:
            break
        output = step(engine)
        now_s = time.perf_counter()
        num_tokens += len(output.tokens)
        if output.batch_size:
            context = sum(num_prompt[token.request_id] + token.position for token in output.tokens)
            steps.append(_step_time(output, now_s - last_s, context))
            last_s = now_s
        elif not output.has_run:
            engine.wait(_WAIT_S)
            last_s = time.perf_counter()
        on_step(output)
    return RunTimes(last_s - started_s, num_tokens, tuple(steps))


def step(engine: Engine) -> StepOutput:
    """Runs one step of the engine. Raises RequestFailed if any request fails in it."""
    output = engine.step()
    for failure in output.failures:
        raise RequestFailed(f"a request of the benchmark failed: {failure.error.message}")
    return output


def preload(engine: Engine, adapters: Iterable[AdapterRef], deadline_s: float = 60.0) -> None:
    """Loads adapters by running a request of one token with each.

    Raises RequestFailed if one fails, or if they are not loaded by the deadline.
    """
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    requests = [Request(f"preload-{number}", number, (1,), params, ref) for number, ref in enumerate(adapters)]
    started_s = time.monotonic()
    try:
        for request in requests:
            engine.add(request)
        while engine.num_requests:
            if time.monotonic() - started_s > deadline_s:
                raise RequestFailed(f"the adapters are not on the device after {deadline_s:g} s")
            if not step(engine).has_run:
                engine.wait(_WAIT_S)
    finally:
        for request in requests:
            engine.cancel(request.request_id)


def _take(waiting: deque[Request], count: int) -> list[Request]:
    taken = list(islice(waiting, max(count, 0)))
    for _ in taken:
        waiting.popleft()
    return taken


def _step_time(output: StepOutput, duration_s: float, num_context_tokens: int) -> StepTime:
    return StepTime(duration_s, output.batch_size, output.num_prefill_tokens, output.num_adapters, num_context_tokens)
