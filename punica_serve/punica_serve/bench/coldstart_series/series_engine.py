"""An engine for the rows of one mode: its adapters in host memory, its link, and its runs."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from rich.progress import Progress

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.bench.coldstart_series.arrival_list import Arrival
from punica_serve.bench.coldstart_series.link_rate import LoadTime, measure_load
from punica_serve.bench.coldstart_series.request_queues import Arriving, ClosedLoop, RequestFeed, TimedQueue
from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_replay import Place, SeriesReplay, SeriesTimes
from punica_serve.bench.coldstart_series.series_rows import SeriesRow
from punica_serve.bench.coldstart_series.series_settings import SeriesSettings
from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.bench.driver import MaxConcurrency, OnStep, drive, preload
from punica_serve.bench.host_adapters import fill_ranks, modules_of
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.config.engine_section import ColdStart, EngineConfig
from punica_serve.engine.adapters.host_cache import SHARED_BYTES
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.process.memory_tuning import frozen_gc
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import RequestLength, alpaca_like_lengths

_PROMPT_SEED = 7
#: Loads whose median is taken.
_NUM_LOADS = 9
_WARM_UP_REQUESTS, _WARM_UP_TOKENS, _WARM_UP_SEED = 64, 8, 1


@contextmanager
def series_engine(
    subject: Subject, settings: SeriesSettings, mode: ColdStart, num_aliases: int, progress: Progress
) -> Iterator["SeriesEngine"]:
    """An engine in a mode with its adapters in host memory, closed in the end."""
    config = _config(subject, settings, mode, num_aliases)
    with timed(progress, f"engine, cold_start {mode}"):
        engine = subject.open_engine(config)
    try:
        with frozen_gc():
            yield SeriesEngine(engine, subject, settings, progress)
    finally:
        engine.close()


class SeriesEngine:
    """Runs rows on one engine."""

    def __init__(self, engine: Engine, subject: Subject, settings: SeriesSettings, progress: Progress) -> None:
        self._engine = engine
        self._settings = settings
        task = progress.add_task("random adapters", total=sum(settings.num_by_rank.values()))
        self._bytes = {
            rank: SharedBytes(
                engine,
                fill_ranks(engine, count, rank, subject.dtype, lambda: progress.advance(task), settings.projections),
            )
            for rank, count in settings.num_by_rank.items()
        }
        progress.remove_task(task)

    def loads(self, num_copies: int) -> tuple[LoadTime, ...]:
        """Copies each piece of an adapter so often from now on, and measures the load of one adapter of each rank.

        Raises RequestFailed if an adapter does not arrive.
        """
        self._engine.slow_copies(num_copies)
        return tuple(self._load(rank, num_copies) for rank in self._bytes)

    def warm_up(self) -> None:
        """Runs short answers, so that all one-time work happens before the clock starts."""
        drawn = alpaca_like_lengths(_WARM_UP_REQUESTS, _WARM_UP_SEED)
        for rank in self._settings.ranks:
            with self._bytes[rank].aliases(f"warm-up-r{rank}", range(_WARM_UP_REQUESTS)) as refs:
                lengths = [self._fit(length.prompt, _WARM_UP_TOKENS) for length in drawn]
                requests = self._requests("warm-up", lengths, refs, range(_WARM_UP_REQUESTS))
                drive(self._engine, MaxConcurrency(requests, self._settings.batch_size), lambda _: None)

    def run(
        self, series: Series, row: SeriesRow, arrivals: Sequence[Arrival], on_step: OnStep
    ) -> tuple[SeriesTimes, ...]:
        """Runs a row of a series. Raises RequestFailed."""
        shared = self._bytes[series.rank]
        name = f"{series.name}-{row.name}"
        if row.is_cached:
            preload(self._engine, shared.own)
            refs = {arrival.adapter: shared.own[arrival.adapter % len(shared.own)] for arrival in arrivals}
            return self._replay(series, row, name, arrivals, refs, "device", on_step)
        place: Place = "host" if series.num_adapters is None else "either"
        with shared.aliases(name, (arrival.adapter for arrival in arrivals)) as aliases:
            return self._replay(series, row, name, arrivals, aliases, place, on_step)

    def _replay(
        self,
        series: Series,
        row: SeriesRow,
        name: str,
        arrivals: Sequence[Arrival],
        refs: Mapping[int, AdapterRef],
        place: Place,
        on_step: OnStep,
    ) -> tuple[SeriesTimes, ...]:
        lengths = [self._fit(*arrival.length) for arrival in arrivals]
        requests = self._requests(name, lengths, refs, (arrival.adapter for arrival in arrivals))
        replay = SeriesReplay(
            self._engine,
            self._queue(series, row, arrivals, requests),
            on_step,
            place=place,
            is_blocking=row.is_blocking,
            deadline_s=self._settings.deadline_s,
        )
        return replay.run()

    def _queue(
        self, series: Series, row: SeriesRow, arrivals: Sequence[Arrival], requests: Sequence[Request]
    ) -> RequestFeed:
        if series.rate_per_s is None:
            return ClosedLoop(requests, series.num_in_flight, self._settings.seconds)
        timed = [Arriving(arrival.due_s, request) for arrival, request in zip(arrivals, requests, strict=True)]
        # The engine would load the adapters of requests that wait in it, beside its steps.
        return TimedQueue(timed, self._settings.batch_size if row.is_blocking else math.inf)

    def _requests(
        self, name: str, lengths: Iterable[RequestLength], refs: Mapping[int, AdapterRef], adapters: Iterable[int]
    ) -> list[Request]:
        tokens = np.random.default_rng(_PROMPT_SEED)
        vocab_size = self._engine.model_config.vocab_size
        return [
            Request(
                f"{name}-{number}",
                number,
                tuple(tokens.integers(vocab_size, size=prompt).tolist()),
                SamplingParams(max_tokens=output, ignore_eos=True),
                refs[adapter],
            )
            for number, ((prompt, output), adapter) in enumerate(zip(lengths, adapters, strict=True))
        ]

    def _fit(self, prompt: int, output: int) -> RequestLength:
        """The same lengths, cut to fit a small model."""
        limit = self._engine.max_context
        output = min(output, limit // 2)
        return RequestLength(min(prompt, limit - output), output)

    def _load(self, rank: int, num_copies: int) -> LoadTime:
        shared = self._bytes[rank]
        with shared.aliases(f"load-r{rank}", range(_NUM_LOADS)) as refs:
            return measure_load(self._engine, refs.values(), rank, shared.num_bytes, num_copies)


def _config(subject: Subject, settings: SeriesSettings, mode: ColdStart, num_aliases: int) -> EngineConfig:
    """Room for the adapters of all ranks and for aliases in host memory, and for those of one rank on the device."""
    host_bytes = num_aliases * SHARED_BYTES
    modules = modules_of(settings.projections, subject.model)
    for rank, count in settings.num_by_rank.items():
        size = packed_num_bytes(dict.fromkeys(modules, rank), subject.model, subject.dtype)
        host_bytes += count * _aligned(size)
    num_pages = settings.num_adapters * pages_of_rank(settings.ranks[-1])
    return subject.config.model_copy(
        update={
            "cold_start": mode,
            "max_batch_size": settings.batch_size,
            "num_lora_pages": max(num_pages, *map(pages_of_rank, settings.num_by_rank)),
            "host_cache_bytes": host_bytes,
            # The first group of a process alone can have a faster exchange, and modes are compared.
            "exchange": "nccl",
        }
    )


def _aligned(num_bytes: int) -> int:
    """The bytes that the host cache takes for so many."""
    return -(-num_bytes // SHARED_BYTES) * SHARED_BYTES
