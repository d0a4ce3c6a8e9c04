"""One stream of requests beside others that decode, whose times `bench coldstart` compares."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from punica_serve.bench.driver import step
from punica_serve.bench.first_token_phases import FirstToken, StepGap
from punica_serve.bench.host_counters import HostCounters
from punica_serve.bench.limited_store.store_link import Store
from punica_serve.bench.thread_clock import ThreadClock, ThreadLap
from punica_serve.config.engine_section import ColdStart
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams

_PROMPT_SEED = 7
#: Steps in which all warm requests decode before the stream begins.
_SETTLING_STEPS = 10

#: packed: packed files in the page cache. disk: the same, which the page cache lacks. http, s3: a store.
Source = Literal["host", "packed", "disk", "files", "http", "s3"]

_STORES: dict[Source, Store] = {"http": "HTTP", "s3": "S3"}


@dataclass(frozen=True, slots=True)
class ColdstartSettings:
    """The benchmark's options."""

    #: Where the cold adapters are.
    source: Source = "host"
    num_arrivals: int = 32
    #: Time from one arrival to the next.
    gap_s: float = 0.1
    num_prompt_tokens: int = 128
    #: Output tokens of a stream's request, which finishes before the next arrives.
    num_output_tokens: int = 8
    #: Each round has one cold and one warm stream. With an even number, each kind goes first equally often.
    num_rounds: int = 4
    rank: int = 16
    #: Requests in a step, of which one is the stream's. With 1 the device is idle between the stream's requests.
    batch_size: int = 32
    #: `engine.cold_start`.
    mode: ColdStart = "layerwise"
    #: Folder for temporary adapter files; None means the system's.
    folder: Path | None = None
    #: The rate of the store's server, at most.
    store_gb_per_s: float = 1.0

    @property
    def store(self) -> Store | None:
        """The protocol of the cold adapters' store; None if they are on this host."""
        return _STORES.get(self.source)

    @property
    def has_packed_files(self) -> bool:
        """Whether cold adapters are in packed files."""
        return self.source in ("packed", "disk")


@dataclass(slots=True)
class StreamTimes:
    """The times measured in the streams of one kind."""

    #: Time from each arrival to its first token.
    first_token_s: list[float] = field(default_factory=list)
    #: Times between the tokens of the warm requests, while the stream ran.
    between_tokens_s: list[float] = field(default_factory=list)
    #: The same first tokens, with what each waited for.
    first_tokens: list[FirstToken] = field(default_factory=list)
    #: The same gaps, one for each step.
    gaps: list[StepGap] = field(default_factory=list)
    #: The host's counters before and after each stream.
    hosts: list[tuple[HostCounters, HostCounters]] = field(default_factory=list)


def run_stream(
    engine: Engine,
    warm: Sequence[AdapterRef],
    adapters: Sequence[AdapterRef],
    settings: ColdstartSettings,
    times: StreamTimes,
    *,
    run: str,
) -> None:
    """Runs one stream beside the warm requests, which are cancelled at its end."""
    stream = _Stream(engine, warm, adapters, settings, times, run)
    try:
        stream.settle()
        before = HostCounters.now()
        stream.run()
        times.hosts.append((before, HostCounters.now()))
    finally:
        stream.cancel()


class _Stream:
    """One stream of requests, and the warm ones beside it."""

    def __init__(
        self,
        engine: Engine,
        warm: Sequence[AdapterRef],
        adapters: Sequence[AdapterRef],
        settings: ColdstartSettings,
        times: StreamTimes,
        run: str,
    ) -> None:
        self._engine = engine
        self._times = times
        self._gap_s = settings.gap_s
        tokens = np.random.default_rng(_PROMPT_SEED)

        def request(name: str, number: int, ref: AdapterRef, max_tokens: int) -> Request:
            prompt = tokens.integers(engine.model_config.vocab_size, size=settings.num_prompt_tokens)
            params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
            return Request(f"{run}-{name}-{number}", number, tuple(prompt.tolist()), params, ref)

        longest = engine.longest_request - settings.num_prompt_tokens
        self._warm = [request("warm", number, ref, longest) for number, ref in enumerate(warm)]
        after = len(self._warm)
        self._arriving = [
            request("new", after + number, ref, settings.num_output_tokens) for number, ref in enumerate(adapters)
        ]
        self._num_left = len(self._arriving)
        self._warm_ids = {request.request_id for request in self._warm}
        self._due_s: dict[str, float] = {}
        self._added_s: dict[str, float] = {}
        self._last_s: dict[str, float] = {}
        #: The adapter of each request of the stream, and the newest load of each adapter.
        self._digests = {request.request_id: ref.digest for request, ref in zip(self._arriving, adapters, strict=True)}
        self._traces: dict[str, LoadTrace] = {}
        #: The end of the last step in which warm requests got tokens.
        self._last_step_s: float | None = None

    def settle(self) -> None:
        """Runs steps until all warm requests decode. Without any there is nothing to wait for."""
        if not self._warm:
            return
        for request in self._warm:
            self._engine.add(request)
        started: set[str] = set()
        num_steps = 0
        while len(started) < len(self._warm) or num_steps < _SETTLING_STEPS:
            output = self._step()
            started.update(token.request_id for token in output.tokens)
            num_steps += len(started) == len(self._warm)

    def run(self) -> None:
        """Adds each request when it is due, and runs steps until all have ended."""
        started_s = time.perf_counter()
        waiting = [(started_s + number * self._gap_s, request) for number, request in enumerate(self._arriving)]
        waiting.reverse()
        self._engine.take_load_traces()  # of the requests that have settled
        clock = ThreadClock()
        while self._num_left:
            while waiting and waiting[-1][0] <= time.perf_counter():
                due_s, request = waiting.pop()
                self._due_s[request.request_id] = due_s
                self._added_s[request.request_id] = time.perf_counter()
                self._engine.add(request)
            output = self._step(waiting[-1][0] if waiting else math.inf)
            now_s = time.perf_counter()
            if output.batch_size:
                self._note_gap(output, now_s, clock.lap())
            self._note(output, now_s)

    def cancel(self) -> None:
        for request in (*self._warm, *self._arriving):
            self._engine.cancel(request.request_id)

    def _step(self, due_s: float = math.inf) -> StepOutput:
        """Runs a step. Without anything to run it waits, but not beyond the next arrival."""
        output = step(self._engine)
        if not output.has_run:
            self._engine.wait(max(0.0, min(self._gap_s, due_s - time.perf_counter())))
        return output

    def _note_gap(self, output: StepOutput, now_s: float, lap: ThreadLap) -> None:
        last_s, self._last_step_s = self._last_step_s, now_s
        if last_s is not None and self._warm_ids:
            idle_s = max(0.0, now_s - last_s - output.duration_s)
            gap = StepGap(last_s, now_s, output.num_prefill_tokens, idle_s, lap.core_s, lap.no_core_s)
            self._times.gaps.append(gap)

    def _note(self, output: StepOutput, now_s: float) -> None:
        for token in output.tokens:
            name = token.request_id
            if name in self._warm_ids:
                if name in self._last_s:
                    self._times.between_tokens_s.append(now_s - self._last_s[name])
                self._last_s[name] = now_s
            elif token.position == 0:
                self._note_first(name, now_s, now_s - output.duration_s)
        for name, _ in output.finished:
            if name in self._warm_ids:
                raise RequestFailed("a warm request ended before the stream; ask for fewer arrivals or a shorter gap")
            self._num_left -= 1

    def _note_first(self, name: str, now_s: float, begun_s: float) -> None:
        self._traces |= {trace.digest: trace for trace in self._engine.take_load_traces()}
        due_s, trace = self._due_s[name], self._traces.get(self._digests[name])
        self._times.first_token_s.append(now_s - due_s)
        self._times.first_tokens.append(FirstToken(due_s, self._added_s[name], begun_s, now_s, trace))
