"""Measures a performance profile for simulated GPUs: see ``punica_serve.performance.profile``.

Prefills and decodes are measured by `bench batching`, with fewer sizes, and what LoRA adds over mixes of ranks by
``lora_samples``. An adapter's load time is the extra time to first token when the adapter is in host memory instead of
on the device.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from rich.progress import Progress

from punica_serve.bench import batching
from punica_serve.bench.coldstart_series.shared_bytes import SharedBytes
from punica_serve.bench.driver import step
from punica_serve.bench.group_process import measure_in_process
from punica_serve.bench.host_adapters import fill_ranks
from punica_serve.bench.lora_samples import measure_lora
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError
from punica_serve.performance.lora_fit import LoraFit, LoraSample, fit_lora
from punica_serve.performance.profile import AdapterLoad, DecodeTimes, ModelShape, PerformanceProfile, PrefillTimes
from punica_serve.protocol import AdapterRef, Request, SamplingParams

#: Measured lengths: on a CPU like a demo's requests, to finish within minutes.
_CPU_TOKENS, _GPU_TOKENS = (64, 256, 512), (128, 512, 2048)
_BATCHES = (1, 4, 8, 16, 32, 64, 128)
#: Prompts that are prefilled together; one takes a share of their time.
_NUM_PROMPTS = 4
_NUM_LOADS = 6
#: The rate assumed for loads too fast to measure.
_FASTEST_GB_PER_S = 1000.0


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A profile, and what its `lora` was fitted to."""

    profile: PerformanceProfile
    samples: Sequence[LoraSample]
    fit: LoraFit


def measure_profile(subject: Subject, rank: int, progress: Progress) -> MeasuredProfile:
    """``rank`` is of the adapters whose load is timed. Raises ConfigError if the engine's context is too short."""
    largest = subject.config.max_batch_size
    context = _longest_request(subject)
    tokens = tuple(count for count in (_GPU_TOKENS if subject.on_gpu else _CPU_TOKENS) if count <= context // 2)
    if not tokens:
        raise ConfigError(
            f"a context of {context} tokens is too short to be measured; raise `engine.max_context`",
            param="engine.max_context",
        )
    sizes = (*(size for size in _BATCHES if size < largest), largest)
    settings = batching.BatchingSettings(
        prompts=tokens,
        prefill_batches=(_NUM_PROMPTS,),
        contexts=tokens,
        decode_batches=sizes,
        populations=(),
        rank=rank,
    )
    measured = batching.run(subject, settings, progress)
    decode = decode_times(measured, tokens)
    samples = measure_lora(subject, sizes, tokens[0], progress)
    fit = fit_lora(samples)
    device = torch.cuda.get_device_name(subject.device) if subject.on_gpu else "cpu"
    dtype, rate = subject.config.dtype_of(subject.model), partial(_load_gb_per_s, subject, rank)
    profile = PerformanceProfile(
        version=2,
        name=f"{device}, {subject.title} in {dtype}",
        source=f"punica-serve profile, {time.strftime('%Y-%m-%d', time.gmtime())}",
        device=device,
        model=ModelShape.of(subject.model.whole),
        dtypes=(dtype,),
        group_size=subject.model.rank.size,
        max_prefills=1,
        prefill=_prefill_times(measured, decode),
        decode=decode,
        lora=fit.lora,
        adapter_load=AdapterLoad(gb_per_s=measure_in_process(subject, rate, progress)),
    )
    return MeasuredProfile(profile, samples, fit)


def _longest_request(subject: Subject) -> int:
    """Tokens that the model and, if its size is known, the KvCache allow."""
    context = subject.config.context_of(subject.model)
    num_pages = subject.config.num_kv_pages
    return min(context, num_pages * subject.config.page_size) if num_pages else context


def _prefill_times(measured: batching.BatchingMeasured, decode: DecodeTimes) -> PrefillTimes:
    """A prefill of one token is a decode step."""
    points = [(1, decode.ms[0][0])]
    points += [(time.num_prompt_tokens, _ms(time.latency_s / time.num_prompts)) for time in measured.prefills]
    return PrefillTimes(tokens=tuple(tokens for tokens, _ in points), ms=_rising(ms for _, ms in points))


def decode_times(measured: batching.BatchingMeasured, contexts: tuple[int, ...]) -> DecodeTimes:
    """Batch sizes that fit at two contexts, or at the only one; size one always does.

    Where the KvCache does not hold a context, the line through the two before it goes on.
    """
    found = {(row.batch_size, row.num_context_tokens): _ms(row.step_s) for row in measured.decodes}
    least = contexts[: 2 if len(contexts) > 1 else 1]
    sizes = sorted({size for size, _ in found if all((size, context) in found for context in least)})
    lines = [_extended([found.get((size, context)) for context in contexts], contexts) for size in sizes]
    columns = [_rising(column) for column in zip(*lines, strict=True)]
    ms = tuple(_rising(line) for line in zip(*columns, strict=True))
    return DecodeTimes(batch=tuple(sizes), context=contexts, ms=ms)


def _extended(line: Sequence[float | None], contexts: Sequence[int]) -> list[float]:
    """Only the longest contexts may be missing."""
    ms: list[float] = []
    for number, measured_ms in enumerate(line):
        if measured_ms is None:
            slope = (ms[-1] - ms[-2]) / (contexts[number - 1] - contexts[number - 2])
            measured_ms = round(ms[-1] + slope * (contexts[number] - contexts[number - 1]), 3)
        ms.append(measured_ms)
    return ms


def _load_gb_per_s(subject: Subject, rank: int, progress: Progress) -> float:
    config = subject.sized(batch_size=1, rank=rank, num_host=2 * _NUM_LOADS, num_resident=2 * _NUM_LOADS)
    with timed(progress, "engine for adapter loads"):
        engine = subject.open_engine(config)
    try:
        task = progress.add_task("adapters", total=_NUM_LOADS)
        own = fill_ranks(engine, _NUM_LOADS, rank, subject.dtype, lambda: progress.advance(task))
        # A group has those on its devices, but none of their aliases.
        with SharedBytes(engine, own).aliases("load", range(_NUM_LOADS)) as aliases:
            first, *refs = aliases.values()
            _first_token_s(engine, first)  # includes one-time work
            cold_s = statistics.median(_first_token_s(engine, ref) for ref in refs)
            warm_s = statistics.median(_first_token_s(engine, ref) for ref in refs)
    finally:
        engine.close()
    return load_gb_per_s(first.num_bytes, cold_s - warm_s)


def load_gb_per_s(num_bytes: int, load_s: float) -> float:
    """To four digits, so that the rate of a small adapter on a slow machine isn't rounded to nothing.

    A load that took no time at all, as noise has it, was as fast as the fastest.
    """
    rate = num_bytes / load_s / 1e9 if load_s > 0 else _FASTEST_GB_PER_S
    return float(f"{min(rate, _FASTEST_GB_PER_S):.4g}")


def _first_token_s(engine: Engine, ref: AdapterRef) -> float:
    started_s = time.perf_counter()
    engine.add(Request(ref.digest, 0, (1, 2), SamplingParams(max_tokens=1, ignore_eos=True), ref))
    while engine.num_requests:
        if not step(engine).has_run:
            engine.wait(1.0)
    return time.perf_counter() - started_s


def _rising(ms: Iterable[float]) -> tuple[float, ...]:
    """Makes times monotonic: a decrease is noise."""
    return tuple(accumulate(ms, max))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
