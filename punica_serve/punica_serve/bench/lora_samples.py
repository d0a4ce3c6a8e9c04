"""Times decode steps of batches with mixed ranks; ``performance.lora_fit`` fits what they add."""

from collections.abc import Mapping, Sequence
from functools import partial

from rich.progress import Progress

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_needed, pages_of_rank
from punica_serve.bench.batching import EngineBench
from punica_serve.bench.driver import preload
from punica_serve.bench.group_process import measure_in_process
from punica_serve.bench.host_adapters import fill_ranks
from punica_serve.bench.lora_mixes import RANKS, Mix, MixAdapter, mixes, sample_of
from punica_serve.bench.subject import Subject
from punica_serve.bench.token_bar import timed
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.engine import Engine
from punica_serve.engine.memory.byte_arena import arena_num_bytes
from punica_serve.performance.lora_fit import LoraSample
from punica_serve.protocol import AdapterRef

#: Rank rows of all adapters of one rank together, as far as memory allows.
_RANK_ROWS = 1024
#: The share of a GPU's memory that all adapters may take.
_POOL_SHARE = 0.35


def measure_lora(subject: Subject, sizes: Sequence[int], context: int, progress: Progress) -> list[LoraSample]:
    """Samples of batches of these sizes, as far as they fit, all rows with about ``context`` tokens."""
    return measure_in_process(subject, partial(_measure_on_engine, subject, sizes, context), progress)


def _measure_on_engine(subject: Subject, sizes: Sequence[int], context: int, progress: Progress) -> list[LoraSample]:
    counts = _num_adapters(subject, max(sizes))
    with timed(progress, "engine for mixed ranks"):
        engine = subject.open_engine(_config(subject, max(sizes), context, counts))
    try:
        refs = _make_adapters(engine, subject, counts, progress)
        preload(engine, refs.values())
        bench = EngineBench(engine, subject.config.page_size)
        fitting = [size for size in sizes if bench.has_room_for(size, context)]
        return _measure(bench, mixes(fitting, counts), refs, context, progress)
    finally:
        engine.close()


def _measure(
    bench: EngineBench, batches: Sequence[Mix], refs: Mapping[MixAdapter, AdapterRef], context: int, progress: Progress
) -> list[LoraSample]:
    task = progress.add_task("batches of mixed ranks", total=len(batches))
    pages = {adapter.rank: sum(pages_needed(ref.ranks).values()) for adapter, ref in refs.items()}
    base_ms: dict[int, float] = {}
    samples = []
    for mix in batches:
        size = len(mix.adapters)
        if size not in base_ms:
            base_ms[size] = _step_ms(bench, size, context, ())
        step_ms = _step_ms(bench, size, context, [refs[adapter] for adapter in mix.adapters])
        samples.append(sample_of(mix, pages, base_ms[size], step_ms))
        progress.advance(task)
    return samples


def _step_ms(bench: EngineBench, size: int, context: int, refs: Sequence[AdapterRef]) -> float:
    seconds, _ = bench.measure_batch(size, context, refs)
    return round(1e3 * seconds, 4)


def _num_adapters(subject: Subject, largest: int) -> dict[int, int]:
    """How many of each rank: one for each row of the largest batch, if that is not too many."""
    rows = _RANK_ROWS
    if subject.on_gpu:
        row_bytes = _num_bytes(subject, LORA_PAGE_RANKS) / LORA_PAGE_RANKS
        rows = min(rows, int(_POOL_SHARE * subject.device_bytes / row_bytes / len(RANKS)))
    return {rank: max(1, min(largest, rows // rank)) for rank in RANKS}


def _config(subject: Subject, batch_size: int, context: int, counts: Mapping[int, int]) -> EngineConfig:
    num_pages = sum(count * pages_of_rank(rank) for rank, count in counts.items())
    host_bytes = sum(arena_num_bytes(count, _num_bytes(subject, rank)) for rank, count in counts.items())
    changed = {
        "max_batch_size": batch_size,
        "prefill_budget_tokens": max(context, batch_size),
        "num_lora_pages": num_pages,
        "host_cache_bytes": max(host_bytes, subject.config.host_cache_bytes or 0),
    }
    return subject.config.model_copy(update=changed)


def _num_bytes(subject: Subject, rank: int) -> int:
    """Bytes of an adapter of this rank."""
    return packed_num_bytes(dict.fromkeys(subject.model.linear_shapes, rank), subject.model, subject.dtype)


def _make_adapters(
    engine: Engine, subject: Subject, counts: Mapping[int, int], progress: Progress
) -> dict[MixAdapter, AdapterRef]:
    task = progress.add_task("random adapters", total=sum(counts.values()))
    refs: dict[MixAdapter, AdapterRef] = {}
    for rank, count in counts.items():
        made = fill_ranks(engine, count, rank, subject.dtype, lambda: progress.advance(task))
        refs |= {MixAdapter(rank, number): ref for number, ref in enumerate(made)}
    return refs
