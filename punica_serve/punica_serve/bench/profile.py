"""Measures a performance profile for simulated GPUs: see ``punica_serve.performance.profile``.

Prefills and decodes are measured by `bench batching`, with fewer sizes. An adapter's load time is the extra time to
first token when the adapter is in host memory instead of on the device.
"""

import statistics
import time
from collections.abc import Iterable
from itertools import accumulate

import torch
from rich.progress import Progress

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.bench import batching
from punica_serve.bench.driver import step
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import told
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError
from punica_serve.performance.lora_times import DistinctLora
from punica_serve.performance.profile import AdapterLoad, DecodeTimes, ModelShape, PerformanceProfile, PrefillTimes
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from punica_serve.workload import Population

#: Measured lengths: on a CPU like a demo's requests, to finish within minutes.
_CPU_TOKENS, _GPU_TOKENS = (64, 256, 512), (128, 512, 2048)
_BATCHES = (1, 4, 8, 16, 32, 64, 128)
#: Prompts that are prefilled together; one takes a share of their time.
_NUM_PROMPTS = 4
_NUM_LOADS = 6
#: The rate assumed for loads too fast to measure.
_FASTEST_GB_PER_S = 1000.0


def measure_profile(subject: Subject, rank: int, progress: Progress) -> PerformanceProfile:
    """Raises ConfigError if the engine's context is too short."""
    largest = subject.config.max_batch_size
    context = _longest_request(subject)
    tokens = tuple(count for count in (_GPU_TOKENS if subject.on_gpu else _CPU_TOKENS) if count <= context // 2)
    if not tokens:
        raise ConfigError(
            f"a context of {context} tokens is too short to be measured; raise `engine.max_context`",
            param="engine.max_context",
        )
    settings = batching.Settings(
        prompts=tokens,
        prefill_batches=(_NUM_PROMPTS,),
        contexts=tokens,
        decode_batches=(*(size for size in _BATCHES if size < largest), largest),
        populations=(Population.IDENTICAL, Population.DISTINCT),
        rank=rank,
    )
    measured = batching.run(subject, settings, progress)
    decode = _decode_times(measured, tokens)
    adapter_pages = sum(pages_needed(dict.fromkeys(subject.model.linear_shapes, rank)).values())
    subject.free_memory()
    device = torch.cuda.get_device_name(subject.device) if subject.on_gpu else "cpu"
    dtype = subject.config.dtype_of(subject.model)
    return PerformanceProfile(
        version=2,
        name=f"{device}, {subject.model.name} in {dtype}",
        source=f"punica-serve profile, {time.strftime('%Y-%m-%d', time.gmtime())}",
        device=device,
        model=ModelShape.of(subject.model),
        dtypes=(dtype,),
        group_size=1,
        max_prefills=1,
        prefill=_prefill_times(measured, decode),
        decode=decode,
        lora=_lora_times(measured, tokens[0], adapter_pages),
        adapter_load=AdapterLoad(gb_per_s=_load_gb_per_s(subject, rank, progress)),
    )


def _longest_request(subject: Subject) -> int:
    """Tokens that the model and, if its size is known, the KvCache allow."""
    context = subject.config.context_of(subject.model)
    num_pages = subject.config.num_kv_pages
    return min(context, num_pages * subject.config.page_size) if num_pages else context


def _prefill_times(measured: batching.Measured, decode: DecodeTimes) -> PrefillTimes:
    """A prefill of one token is a decode step."""
    points = [(1, decode.ms[0][0])]
    points += [(time.num_prompt_tokens, _ms(time.latency_s / time.num_prompts)) for time in measured.prefills]
    return PrefillTimes(tokens=tuple(tokens for tokens, _ in points), ms=_rising(ms for _, ms in points))


def _decode_times(measured: batching.Measured, contexts: tuple[int, ...]) -> DecodeTimes:
    """Batch sizes that fit at every context; size one always does."""
    found = {(row.batch_size, row.num_context_tokens): row.step_s for row in measured.decodes if row.adapters == "none"}
    sizes = sorted({size for size, _ in found})
    batch = tuple(size for size in sizes if all((size, context) in found for context in contexts))
    columns = [_rising(_ms(found[size, context]) for size in batch) for context in contexts]
    return DecodeTimes(batch=batch, context=contexts, ms=tuple(_rising(line) for line in zip(*columns, strict=True)))


def _lora_times(measured: batching.Measured, context: int, adapter_pages: int) -> DistinctLora:
    """The extra time of a batch over one without LoRA, where all requests share an adapter and where all differ."""
    steps_s = {
        (row.adapters, row.batch_size): row.step_s for row in measured.decodes if row.num_context_tokens == context
    }
    one, all_differ = Population.IDENTICAL.value, Population.DISTINCT.value
    sizes = sorted(
        size for name, size in steps_s if name == all_differ and {("none", size), (one, size)} <= set(steps_s)
    )
    shared_ms = [_ms(steps_s[one, size] - steps_s["none", size]) for size in sizes]
    span = sizes[-1] - sizes[0]
    row_ms = max(0.0, round((shared_ms[-1] - shared_ms[0]) / span, 6)) if span else 0.0
    added_ms = [round(_ms(steps_s[all_differ, size] - steps_s["none", size]) - row_ms * size, 3) for size in sizes]
    pages = tuple(adapter_pages * size for size in sizes)
    return DistinctLora(kind="distinct", pages=pages, ms=_rising(max(0.0, ms) for ms in added_ms), row_ms=row_ms)


def _load_gb_per_s(subject: Subject, rank: int, progress: Progress) -> float:
    config = subject.sized(batch_size=1, rank=rank, num_host=_NUM_LOADS, num_resident=_NUM_LOADS)
    with told(progress, "engine for adapter loads"):
        engine = Engine(config, str(subject.device))
    try:
        task = progress.add_task("adapters", total=_NUM_LOADS)
        refs = fill_host_cache(engine, _NUM_LOADS, rank, subject.dtype, lambda: progress.advance(task))
        _first_token_s(engine, refs[0])  # includes one-time work
        cold_s = statistics.median(_first_token_s(engine, ref) for ref in refs[1:])
        warm_s = statistics.median(_first_token_s(engine, ref) for ref in refs[1:])
    finally:
        engine.close()
    least_s = refs[0].num_bytes / (_FASTEST_GB_PER_S * 1e9)
    return round(refs[0].num_bytes / max(cold_s - warm_s, least_s) / 1e9, 3)


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
