"""Runs `bench overhead`."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.progress import Progress

from punica_serve.bench.overhead import profile, sweep
from punica_serve.bench.overhead.steady import NUM_PROMPT_TOKENS
from punica_serve.bench.overhead.sweep import OverheadSettings, spread
from punica_serve.bench.random_adapters import adapter_bytes, fill_host_cache
from punica_serve.bench.report import Report, machine
from punica_serve.bench.subject import Subject
from punica_serve.config import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.lora_layout import LORA_PAGE_RANKS

TRACE_NAME = "overhead-trace.json.gz"


def run(subject: Subject, settings: OverheadSettings, out: Path, progress: Progress) -> Report:
    """Three sweeps, then a trace of some steps into ``out``. Raises RequestFailed if any request fails."""
    engine = Engine(sized(subject, settings), str(subject.device))
    try:
        making = progress.add_task("adapters", total=sum(settings.num_adapters.values()))
        adapters = {
            rank: fill_host_cache(engine, count, rank, subject.dtype, partial(progress.advance, making))
            for rank, count in settings.num_adapters.items()
        }
        task = progress.add_task("overhead", total=sweep.num_batches(settings) + 1)
        table = sweep.measure(engine, settings, adapters, partial(progress.advance, task))
        batch = spread(adapters[settings.rank][: settings.batch_size], settings.batch_size)
        kernels = profile.trace(engine, batch, settings.num_profiled_steps, out / TRACE_NAME)
        progress.advance(task)
    finally:
        engine.close()
    missing = profile.missing_kernels(kernels) if subject.on_gpu else []
    return Report(
        "overhead",
        machine(str(subject.device)),
        {"model": subject.model.name, **asdict(settings)},
        [table, kernels],
        {"": partial(sweep.draw, table)},
        {"trace": TRACE_NAME},
        [f"the trace holds no kernel called {name}" for name in missing],
    )


def sized(subject: Subject, settings: OverheadSettings) -> EngineConfig:
    """The subject's config with room for every batch and its adapters."""
    pages = {rank: count * -(-rank // LORA_PAGE_RANKS) for rank, count in settings.num_adapters.items()}
    host_bytes = sum(
        count * adapter_bytes(subject.model, rank, subject.dtype) for rank, count in settings.num_adapters.items()
    )
    return subject.config.model_copy(
        update={
            "max_batch_size": settings.max_batch_size,
            "num_lora_pages": max(*pages.values(), subject.config.num_lora_pages),
            "host_cache_bytes": max(host_bytes, subject.config.host_cache_bytes),
            # One prefill fits one step, and there is one shape of it to capture.
            "prefill_budget_tokens": NUM_PROMPT_TOKENS,
        }
    )
