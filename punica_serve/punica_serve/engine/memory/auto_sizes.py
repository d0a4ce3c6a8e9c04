"""The sizes that `engine.num_lora_pages: auto` and `engine.host_cache_bytes: auto` stand for on a device."""

import torch

from punica_serve.base_model.memory_budget import (
    HOST_TIMES,
    adapter_num_bytes,
    auto_lora_pages,
    lora_pages_within,
)
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.available_memory import available_bytes
from punica_serve.engine.memory.device_memory import free_bytes, total_bytes

#: At most so much of the host memory that is available, divided among its GPUs.
_HOST_SHARE = 0.5


def lora_pages(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Pages of the LoRA pool; for `auto` to be asked once the weights are on the device."""
    if config.num_lora_pages is not None:
        return config.num_lora_pages
    wanted = auto_lora_pages(config.max_batch_size, config.expected_lora_rank, config.lora_limits)
    if device.type == "cpu":
        return wanted
    used = total_bytes(device) - free_bytes(device)
    left = int(config.device_memory_share * total_bytes(device)) - used
    return lora_pages_within(model, wanted, max(0, left), dtype.itemsize, config.lora_limits)


def host_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Host memory for adapters."""
    if config.host_cache_bytes is not None:
        return config.host_cache_bytes
    wanted = HOST_TIMES * config.max_batch_size * adapter_num_bytes(model, config.expected_lora_rank, dtype.itemsize)
    num_sharing = torch.cuda.device_count() if device.type == "cuda" else 1
    return min(wanted, int(_HOST_SHARE * available_bytes()) // max(1, num_sharing))
