"""Which runner a device's steps take."""

from punica_serve.config import EngineConfig
from punica_serve.counted import counted
from punica_serve.engine.device_memory import first_line, free_bytes, gib, is_out_of_memory
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.lora_batch import PagesOf
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.engine.sampler import Sampler
from punica_serve.engine.step_runner import CpuRunner, StepRunner
from punica_serve.engine.step_shape import StepShapes
from punica_serve.errors import ConfigError
from punica_serve.models.llama import Llama


def make_runner(
    config: EngineConfig, model: Llama, cache: KvCache, lora_pool: LoraPool, sampler: Sampler, pages_of: PagesOf
) -> StepRunner:
    """Raises ConfigError if what steps need beside the KvCache does not fit a GPU, or their rows no launch."""
    parts, device = (model, cache, lora_pool, sampler, pages_of), cache.pool.device
    if device.type != "cuda":
        return CpuRunner(*parts)
    from punica_serve.engine.cuda_runner import CudaRunner

    shapes = StepShapes(max_batch_size=config.max_batch_size, prefill_budget_tokens=config.prefill_budget_tokens)
    before = free_bytes(device)
    try:
        return CudaRunner(*parts, shapes, use_graphs=config.cuda_graphs)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # What they had is not given back yet: the error holds it.
        taken = before - free_bytes(device)
        requests = counted(config.max_batch_size, "request")
        raise ConfigError(
            f"steps of {requests} and {counted(config.prefill_budget_tokens, 'prompt token')} do not fit"
            f" {device}: of the {gib(before)} beside its KvCache they took {gib(taken)} and asked for more; lower"
            " `engine.device_memory_share`, `engine.max_batch_size` or `engine.prefill_budget_tokens`"
            f" ({first_line(error)})",
            param="engine.device_memory_share",
        ) from error
