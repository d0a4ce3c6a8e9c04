"""Runs the requests of a series through an engine, and times each from its arrival."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from punica_serve.bench.coldstart_series.request_queues import Arriving, RequestFeed
from punica_serve.bench.driver import OnStep, step
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import Request

#: Longest wait for something to do, and for a load before the next look at it.
_WAIT_S, _LOOK_S = 1.0, 1e-4

#: Where every adapter must be when it is asked for. host: not on the device.
Place = Literal["device", "host", "either"]


@dataclass(frozen=True, slots=True)
class SeriesTimes:
    """The times of one request; all count from its arrival, so time in a queue counts."""

    first_token_s: float
    #: The mean between the tokens after the first; None for an answer of one token.
    per_token_s: float | None
    latency_s: float
    #: Whether all of its adapter was on the device when it arrived.
    was_resident: bool


@dataclass(slots=True)
class _Running:
    """A request that has been added."""

    due_s: float
    was_resident: bool
    first_s: float = 0.0
    num_tokens: int = 0


class SeriesReplay:
    """One run."""

    def __init__(
        self,
        engine: Engine,
        queue: RequestFeed,
        on_step: OnStep,
        *,
        place: Place,
        is_blocking: bool,
        deadline_s: float,
    ) -> None:
        """``is_blocking``: an adapter is loaded between two steps, and the next one waits for it."""
        self._engine = engine
        self._queue = queue
        self._on_step = on_step
        self._place = place
        self._is_blocking = is_blocking
        self._deadline_s = deadline_s
        self._running: dict[str, _Running] = {}
        self._ended: list[SeriesTimes] = []
        self._started_s = 0.0

    def run(self) -> tuple[SeriesTimes, ...]:
        """Raises RequestFailed if a request fails, an adapter is not in its place, or the deadline passes."""
        self._started_s = time.perf_counter()
        with self._cancelling():
            while self._running or self._queue.next_s(self._now_s()) is not None:
                self._add(self._queue.take(self._now_s(), len(self._running)))
                if self._is_blocking:
                    self._await_loads()
                output = step(self._engine)
                self._account(output)
                self._on_step(output)
                if not output.has_run:
                    self._rest()
                self._check_deadline()
        return tuple(self._ended)

    def _now_s(self) -> float:
        return time.perf_counter() - self._started_s

    @contextmanager
    def _cancelling(self) -> Iterator[None]:
        try:
            yield
        finally:
            for request_id in self._running:
                self._engine.cancel(request_id)

    def _add(self, arriving: list[Arriving]) -> None:
        if not arriving:
            return
        if self._is_blocking and self._engine.device.type == "cuda":
            torch.cuda.synchronize(self._engine.device)  # the step before the load has ended
        resident = set(self._engine.resident_adapters)
        for due_s, request in arriving:
            was_resident = self._check_place(request, resident)
            self._running[request.request_id] = _Running(due_s, was_resident)
            self._engine.add(request)

    def _check_place(self, request: Request, resident: set[str]) -> bool:
        """Whether the adapter is on the device. Raises RequestFailed if it must not be, or must be."""
        was_resident = request.adapter is not None and request.adapter.digest in resident
        if self._place != "either" and was_resident != (self._place == "device"):
            found = "on the device already" if was_resident else "not on the device"
            raise RequestFailed(f"the adapter of request {request.request_id} is {found}, which its row rules out")
        return was_resident

    def _await_loads(self) -> None:
        while self._engine.is_copying:
            self._check_deadline()
            time.sleep(_LOOK_S)

    def _account(self, output: StepOutput) -> None:
        now_s = self._now_s()
        for token in output.tokens:
            running = self._running[token.request_id]
            running.num_tokens += 1
            if token.position == 0:
                running.first_s = now_s
        for request_id, _ in output.finished:
            running = self._running.pop(request_id)
            num_after = running.num_tokens - 1
            per_token_s = (now_s - running.first_s) / num_after if num_after else None
            self._ended.append(
                SeriesTimes(running.first_s - running.due_s, per_token_s, now_s - running.due_s, running.was_resident)
            )

    def _rest(self) -> None:
        """Waits for a load or for the next arrival, as nothing can run."""
        now_s = self._now_s()
        next_s = self._queue.next_s(now_s)
        self._engine.wait(_WAIT_S if next_s is None else min(_WAIT_S, next_s - now_s))

    def _check_deadline(self) -> None:
        if self._now_s() > self._deadline_s:
            message = f"{len(self._running)} requests are unfinished after {self._deadline_s:g} s: the load is too high"
            raise RequestFailed(message)
