"""The lines of `config check` about settings that may be `auto`: a step's requests, and the adapters that have room."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from punica_serve.base_model.model_config import ModelConfig
    from punica_serve.config.cluster import ClusterConfig
    from punica_serve.config.engine_section import EngineConfig
    from punica_serve.performance.auto_batch import AutoBatch


def batch_on(batch: "AutoBatch", engine: "EngineConfig", num_ranks: int, num_gpu_bytes: int) -> "AutoBatch":
    """The batch on GPUs with so much memory: `auto` takes a smaller one if its pools do not fit."""
    from punica_serve.engine.memory.batch_fit import largest_within
    from punica_serve.performance.auto_batch import AutoBatch

    if batch.limit == "max_batch_size":
        return batch
    size = largest_within(engine, num_ranks, num_gpu_bytes)
    return batch if size == batch.size else AutoBatch(size, "memory")


def batch_line(batch: "AutoBatch", *, is_gpu_known: bool) -> str:
    """The requests in a step, and what keeps them from being more."""
    if batch.limit == "max_batch_size":
        return f"requests in a step: {batch.size}"
    may_be_fewer = "" if is_gpu_known else "; a GPU may have memory for fewer"
    return f"requests in a step: {batch.size}, limited by {batch.limit}{may_be_fewer}"


def prefill_line(engine: "EngineConfig") -> str:
    """The prompts in a step, and what they share. ``engine``: with a number for `max_batch_size`."""
    return f"prompts in a step: {engine.num_prefills}, {engine.prefill_budget_tokens:,} tokens of them"


def auto_lines(config: "ClusterConfig") -> Iterator[str]:
    """The steps by which `max_batch_size: auto` chooses; none for a number. Raises ConfigError without a profile."""
    from punica_serve.adapters.expected_rank import auto_steps_ms
    from punica_serve.config.fields import AUTO_BATCH

    engine = config.engine
    if engine.max_batch_size != AUTO_BATCH:
        return
    steps = (
        f"{size} requests {ms:.1f} ms, {1e3 * size / ms:,.0f} tokens/s" for size, ms in auto_steps_ms(config).items()
    )
    load = f"{engine.target_context} tokens of context and {engine.target_distinct:.0%} distinct adapters"
    yield f"decode steps by the profile, with {load}: {'; '.join(steps)}"


def adapter_lines(engine: "EngineConfig", share: "ModelConfig", pages_that_fit: int | None = None) -> Iterator[str]:
    """The adapters that the GPU and the host have room for. ``engine``: with a number for `max_batch_size`.

    ``share``: of a rank. ``pages_that_fit``: of the LoRA pool on a GPU of known size.
    """
    from punica_serve.base_model.lora_layout import pages_of_rank

    rank, is_auto = engine.expected_lora_rank, engine.num_lora_pages is None
    if pages_that_fit is None:
        where, pages, limit = "a GPU", engine.lora_pages, "; it may have memory for fewer" if is_auto else ""
    else:
        where, pages = "the GPU", pages_that_fit
        limit = ", limited by memory" if is_auto and pages < engine.lora_pages else ""
    yield f"adapters of rank {rank} on {where} at once: {pages // pages_of_rank(rank)}{limit}"
    yield _in_host_memory(engine, share)


def _in_host_memory(engine: "EngineConfig", share: "ModelConfig") -> str:
    from punica_serve.base_model.memory_budget import adapter_num_bytes, auto_host_bytes
    from punica_serve.cli.group_bytes import shown_bytes

    rank, value_bytes, given = engine.expected_lora_rank, engine.value_bytes_of(share), engine.host_cache_bytes
    num_bytes = auto_host_bytes(share, engine.max_batch_size, rank, value_bytes) if given is None else given
    count = num_bytes // adapter_num_bytes(share, rank, value_bytes)
    each = " for each rank" if share.rank.size > 1 else ""
    fewer = "; a host may have memory for fewer" if given is None else ""
    return f"adapters of rank {rank} in host memory: {count:,}, {shown_bytes(num_bytes)}{each}{fewer}"
