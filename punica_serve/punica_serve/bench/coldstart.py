"""The wait of a request whose adapter is not on the device, and its effect on other requests.

All places of the batch but one decode, each with its own adapter. A stream of requests arrives, one after the other,
each with an adapter that is only in host memory, or only on disk: packed by an earlier load, or not yet. For
comparison, another stream uses adapters that are all on the device. The two alternate in their order from round to
round. The device has room for all warm adapters and a few cold ones, which are evicted for the next.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from rich.progress import Progress

from punica_serve.bench.driver import preload, step
from punica_serve.bench.random_adapters import adapter_files, fill_host_cache, pack_to_disk, write_folders
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.config.engine_section import ColdStart
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import StepOutput
from punica_serve.errors import ConfigError, RequestFailed
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.store.packed_folder import PackedCache

_PROMPT_SEED = 7
#: Steps in which all warm requests decode before the stream begins.
_SETTLING_STEPS = 10
#: Arrivals of a warm-up round that is not counted.
_PILOT_ARRIVALS = 4

#: Cold adapters that the device has room for beside the warm ones.
_COLD_RESIDENT = 4

#: Room for packed forms: everything is kept.
CACHE_BYTES = 1 << 50

Source = Literal["host", "packed", "files"]


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


@dataclass(slots=True)
class StreamTimes:
    """The times measured in the streams of one kind."""

    #: Time from each arrival to its first token.
    first_token_s: list[float] = field(default_factory=list)
    #: Times between the tokens of the warm requests, while the stream ran.
    between_tokens_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ColdstartMeasured:
    """The times of both kinds of streams."""

    warm: StreamTimes
    cold: StreamTimes


def run(subject: Subject, settings: ColdstartSettings, progress: Progress) -> ColdstartMeasured:
    """Raises RequestFailed if a request fails, or if the warm ones end before the stream does."""
    # Adapters of the requests that decode all the time, and of the warm stream.
    num_warm = settings.batch_size - 1 + settings.num_arrivals
    num_cold = _PILOT_ARRIVALS + settings.num_rounds * settings.num_arrivals
    num_host = num_warm + (num_cold if settings.source == "host" else 0)
    # Host memory also holds the adapters from files: they pass through it on their way to the device.
    config = subject.sized(
        batch_size=settings.batch_size,
        rank=settings.rank,
        num_host=num_warm + num_cold,
        num_resident=num_warm + _COLD_RESIDENT,
    ).model_copy(update={"cold_start": settings.mode})
    measured = ColdstartMeasured(StreamTimes(), StreamTimes())
    with adapter_files(settings.folder) as folder:
        cache = PackedCache(folder / "cache", CACHE_BYTES)
        with timed(progress, "engine"), _advising(num_warm + _COLD_RESIDENT):
            engine = Engine(config, str(subject.device), packed_cache=cache)
        try:
            task = progress.add_task("random adapters", total=num_warm + num_cold)
            refs = fill_host_cache(engine, num_host, settings.rank, subject.dtype, lambda: progress.advance(task))
            if settings.source != "host":
                refs += write_folders(
                    folder, subject.model, num_cold, settings.rank, subject.device, lambda: progress.advance(task)
                )
            if settings.source == "packed":
                task = progress.add_task("packing", total=num_cold)
                pack_to_disk(refs[num_host:], cache, subject.model, subject.dtype, lambda: progress.advance(task))
            _run_rounds(engine, refs[:num_warm], refs[num_warm:], settings, measured, progress)
        finally:
            engine.close()
    return measured


@contextmanager
def _advising(num_resident: int) -> Iterator[None]:
    """Adds to an error of memory which options it came from."""
    try:
        yield
    except ConfigError as error:
        message = f"{error.message}; it is for {num_resident} adapters: ask for fewer `--arrivals` or a smaller"
        raise ConfigError(f"{message} `--batch-size`", param=error.param) from error


def _run_rounds(
    engine: Engine,
    warm: Sequence[AdapterRef],
    cold: Sequence[AdapterRef],
    settings: ColdstartSettings,
    measured: ColdstartMeasured,
    progress: Progress,
) -> None:
    """Each round's cold stream uses new adapters; the warm one always uses the same."""
    task = progress.add_task("streams", total=2 * settings.num_rounds)
    beside, resident = warm[: settings.batch_size - 1], warm[settings.batch_size - 1 :]
    run_stream(engine, beside, cold[:_PILOT_ARRIVALS], settings, StreamTimes(), run="pilot")
    for number in range(settings.num_rounds):
        first = _PILOT_ARRIVALS + number * settings.num_arrivals
        for is_cold in (True, False) if number % 2 == 0 else (False, True):
            adapters = cold[first : first + settings.num_arrivals] if is_cold else resident
            if not is_cold:
                preload(engine, [*beside, *resident])
            check_place(engine, adapters, is_cold=is_cold)
            times = measured.cold if is_cold else measured.warm
            run_stream(engine, beside, adapters, settings, times, run=f"{'cold' if is_cold else 'warm'}-{number}")
            progress.advance(task)


def check_place(engine: Engine, adapters: Sequence[AdapterRef], *, is_cold: bool) -> None:
    """Raises RequestFailed unless all adapters of a warm stream are on the device, or none of a cold one's."""
    digests, on_device = {ref.digest for ref in adapters}, set(engine.resident_adapters)
    if is_cold and digests & on_device:
        raise RequestFailed("an adapter of the cold stream is on the device already")
    if not is_cold and digests - on_device:
        raise RequestFailed("an adapter of the warm stream is not on the device")


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
        stream.run()
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
        self._last_s: dict[str, float] = {}

    def settle(self) -> None:
        """Runs steps until all warm requests decode."""
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
        while self._num_left:
            while waiting and waiting[-1][0] <= time.perf_counter():
                due_s, request = waiting.pop()
                self._due_s[request.request_id] = due_s
                self._engine.add(request)
            self._note(self._step(), time.perf_counter())

    def cancel(self) -> None:
        for request in (*self._warm, *self._arriving):
            self._engine.cancel(request.request_id)

    def _step(self) -> StepOutput:
        output = step(self._engine)
        if not output.has_run:
            self._engine.wait(self._gap_s)
        return output

    def _note(self, output: StepOutput, now_s: float) -> None:
        for token in output.tokens:
            name = token.request_id
            if name in self._warm_ids:
                if name in self._last_s:
                    self._times.between_tokens_s.append(now_s - self._last_s[name])
                self._last_s[name] = now_s
            elif token.position == 0:
                self._times.first_token_s.append(now_s - self._due_s[name])
        for name, _ in output.finished:
            if name in self._warm_ids:
                raise RequestFailed("a warm request ended before the stream; ask for fewer arrivals or a shorter gap")
            self._num_left -= 1
