"""Runs `bench overhead`."""

from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

from rich.progress import Progress

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.bench.overhead import profile, sweep
from punica_serve.bench.overhead.steady import NUM_PROMPT_TOKENS
from punica_serve.bench.overhead.sweep import OverheadSettings, spread
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.report import Report, machine
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef

TRACE_NAME = "overhead-trace.json.gz"


def run(subject: Subject, settings: OverheadSettings, out: Path, progress: Progress) -> Report:
    """Writes a trace of some steps into ``out``, then runs three sweeps. Raises RequestFailed if any request fails."""
    engine = Engine(sized(subject, settings), str(subject.device))
    adapters = cache(partial(_adapters, engine, subject, settings))
    task = progress.add_task("overhead", total=1 + sweep.num_batches(settings))
    try:
        batch = spread(adapters(settings.rank)[: settings.batch_size], settings.batch_size)
        kernels = profile.trace(engine, batch, settings.num_profiled_steps, out / TRACE_NAME)
        progress.advance(task)
        table = sweep.measure(engine, settings, adapters, partial(progress.advance, task))
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
        [f"the trace holds no kernel named {name}" for name in missing],
    )


def sized(subject: Subject, settings: OverheadSettings) -> EngineConfig:
    """The subject's config with room for every batch and its adapters."""
    pages = {rank: count * pages_of_rank(rank) for rank, count in settings.num_adapters.items()}
    # Host memory holds the adapters of one rank at a time.
    host_bytes = max(
        (count + 1) * packed_num_bytes(dict.fromkeys(subject.model.linear_shapes, rank), subject.model, subject.dtype)
        for rank, count in settings.num_adapters.items()
    )
    return subject.config.model_copy(
        update={
            "max_batch_size": settings.max_batch_size,
            "num_lora_pages": max(*pages.values(), subject.config.lora_pages),
            "host_cache_bytes": max(host_bytes, subject.config.host_cache_bytes or 0),
            # One prefill fits one step, so only one shape needs to be captured.
            "prefill_budget_tokens": NUM_PROMPT_TOKENS,
        }
    )


def _adapters(engine: Engine, subject: Subject, settings: OverheadSettings, rank: int) -> list[AdapterRef]:
    """Creates the adapters of a rank. They are valid until others replace them in host memory."""
    return fill_host_cache(engine, settings.num_adapters[rank], rank, subject.dtype, on_made=lambda: None)
