"""Makes the step runner of a device."""

from punica_serve.config.cluster import EngineConfig
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda.batch_bucket import BatchBuckets
from punica_serve.engine.memory.device_memory import first_line, free_bytes, gib, is_out_of_memory
from punica_serve.engine.sampler import Sampler
from punica_serve.engine.step_runner import CpuRunner, StepRunner
from punica_serve.engine.torch_lora import ArrivalOf, PagesOf
from punica_serve.errors import ConfigError
from punica_serve.models.model import Model
from punica_serve.numbers import counted


def make_runner(
    config: EngineConfig,
    model: Model,
    cache: KvCache,
    lora_pool: LoraPool,
    sampler: Sampler,
    pages_of: PagesOf,
    arrival_of: ArrivalOf,
) -> StepRunner:
    """Raises ConfigError if a GPU has no memory for steps beside the KvCache, or can't launch steps this large."""
    parts, device = (model, cache, lora_pool, sampler, pages_of, arrival_of), cache.pool.device
    if device.type != "cuda":
        return CpuRunner(*parts)
    from punica_serve.engine.cuda.attention_backend import flashinfer_rows
    from punica_serve.engine.cuda.cuda_runner import CudaRunner

    buckets = BatchBuckets(
        max_batch_size=config.max_batch_size,
        prefill_budget_tokens=config.prefill_budget_tokens,
        max_prefills=config.num_prefills,
    )
    before = free_bytes(device)
    try:
        return CudaRunner(
            *parts,
            buckets,
            use_graphs=config.cuda_graphs,
            by_layer=config.cold_start == "layerwise",
            flashinfer_from=flashinfer_rows(config.attention, model.config, cache.pool.dtype, device),
        )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # The error still holds the memory that was taken.
        taken = before - free_bytes(device)
        requests = counted(config.max_batch_size, "request")
        raise ConfigError(
            f"steps of {requests} and {counted(config.prefill_budget_tokens, 'prompt token')} do not fit"
            f" {device}: they took {gib(taken)} of the {gib(before)} beside its KvCache and needed more; lower"
            " `engine.device_memory_share`, `engine.max_batch_size` or `engine.prefill_budget_tokens`"
            f" ({first_line(error)})",
            param="engine.device_memory_share",
        ) from error
