"""Prefix caching on and off: groups of requests that share an adapter and a system prompt, and prompts that share none.

One engine runs all loads, first without sharing and then with it, in turn. Every round has prompts of its own, so none
finds what an earlier one left.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from rich.progress import Progress

from punica_serve.bench.driver import preload, step
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef, Request, SamplingParams

_PROMPT_SEED = 1
#: The longest sleep between two looks at the clock while nothing runs.
_WAIT_S = 0.001


@dataclass(frozen=True, slots=True)
class PrefixCachingSettings:
    """The benchmark's options."""

    num_groups: int = 8
    group_size: int = 8
    prefix_tokens: int = 1000
    #: Tokens of a prompt that no other has.
    own_tokens: int = 50
    output_tokens: int = 100
    gap_s: float = 0.05
    batch_size: int = 64
    rank: int = 16
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class ArrivalPattern:
    """The requests' arrivals, and the prefixes that their prompts share."""

    name: str
    #: Between groups, and between the members of a group.
    group_gap_s: float = 0.0
    member_gap_s: float = 0.0
    is_shared: bool = True


def loads_of(settings: PrefixCachingSettings) -> tuple[ArrivalPattern, ...]:
    """The rows of the benchmark."""
    gap = f"{settings.gap_s * 1e3:g} ms apart"
    return (
        ArrivalPattern(f"groups {gap}", group_gap_s=settings.gap_s),
        ArrivalPattern(f"members {gap}", member_gap_s=settings.gap_s),
        ArrivalPattern("all at once"),
        ArrivalPattern("no reuse", is_shared=False),
    )


@dataclass(slots=True)
class PatternRun:
    """One run of a load."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    #: By request, from its arrival.
    first_token_s: dict[str, float] = field(default_factory=dict)
    #: By request: prompt tokens that it found. One that found none is missing.
    cached: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds


@dataclass(frozen=True, slots=True)
class PatternResult:
    """All rounds of a load, without sharing and with it."""

    load: ArrivalPattern
    off: tuple[PatternRun, ...]
    on: tuple[PatternRun, ...]


def run(subject: Subject, settings: PrefixCachingSettings, progress: Progress) -> tuple[PatternResult, ...]:
    """Raises RequestFailed if any request fails."""
    count = settings.num_groups
    config = subject.sized(batch_size=settings.batch_size, rank=settings.rank, num_host=count, num_resident=count)
    with timed(progress, "engine"):
        engine = Engine(config.model_copy(update={"prefix_caching": True}), str(subject.device))
    try:
        refs = fill_host_cache(engine, count, settings.rank, subject.dtype, lambda: None)
        preload(engine, refs)
        return _run_loads(engine, settings, refs, progress)
    finally:
        engine.close()


def _run_loads(
    engine: Engine, settings: PrefixCachingSettings, refs: Sequence[AdapterRef], progress: Progress
) -> tuple[PatternResult, ...]:
    loads, sharing = loads_of(settings), engine.prefix_caching
    workload = PrefixWorkload(settings, refs, engine.model_config.vocab_size)
    task = progress.add_task("loads", total=len(loads) * settings.rounds + 1)
    replay(engine, workload.arrivals(loads[0]))  # the first has one-time work
    rows: dict[ArrivalPattern, tuple[list[PatternRun], list[PatternRun]]] = {load: ([], []) for load in loads}
    for _ in range(settings.rounds):
        for load, found in rows.items():
            progress.update(task, description=load.name)
            for engine.prefix_caching, replays in zip((None, sharing), found, strict=True):
                replays.append(replay(engine, workload.arrivals(load)))
            progress.advance(task)
    return tuple(PatternResult(load, tuple(off), tuple(on)) for load, (off, on) in rows.items())


class PrefixWorkload:
    """Requests of a load, with new prompts each time."""

    def __init__(self, settings: PrefixCachingSettings, refs: Sequence[AdapterRef], vocab_size: int) -> None:
        self._settings = settings
        self._refs = refs
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(_PROMPT_SEED)
        self._num_requests = 0

    def arrivals(self, load: ArrivalPattern) -> list[tuple[float, Request]]:
        """(seconds from the start, request), by arrival. Groups that arrive together are mixed, as tenants would."""
        arrivals = sorted(self._arrivals(load), key=lambda arrival: arrival[0])
        return [(due_s, self._request(prompt, ref)) for due_s, prompt, ref in arrivals]

    def _arrivals(self, load: ArrivalPattern) -> Iterator[tuple[float, tuple[int, ...], AdapterRef]]:
        settings = self._settings
        prefixes = [self._tokens(settings.prefix_tokens) for _ in self._refs]
        for member in range(settings.group_size):
            for group, ref in enumerate(self._refs):
                prefix = prefixes[group] if load.is_shared else self._tokens(settings.prefix_tokens)
                due_s = group * load.group_gap_s + member * load.member_gap_s
                yield due_s, prefix + self._tokens(settings.own_tokens), ref

    def _tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._random.integers(self._vocab_size, size=count).tolist())

    def _request(self, prompt: tuple[int, ...], ref: AdapterRef) -> Request:
        self._num_requests += 1
        sampling = SamplingParams(max_tokens=self._settings.output_tokens, ignore_eos=True)
        return Request(f"{self._num_requests}", self._num_requests, prompt, sampling, ref)


def replay(engine: Engine, arrivals: Sequence[tuple[float, Request]]) -> PatternRun:
    """Adds each request when it is due, and runs all to their ends. Raises RequestFailed."""
    found = PatternRun()
    due_s = {request.request_id: due_s for due_s, request in arrivals}
    waiting, started_s = list(reversed(arrivals)), time.perf_counter()
    while waiting or engine.num_requests:
        now_s = time.perf_counter() - started_s
        while waiting and waiting[-1][0] <= now_s:
            engine.add(waiting.pop()[1])
        output = step(engine)
        found.seconds = time.perf_counter() - started_s
        found.num_tokens += len(output.tokens)
        found.num_prefill_tokens += output.num_prefill_tokens
        found.cached.update(output.cached)
        for token in output.tokens:
            if token.position == 0:
                found.first_token_s[token.request_id] = found.seconds - due_s[token.request_id]
        if not output.has_run:
            engine.wait(_WAIT_S)
    return found
