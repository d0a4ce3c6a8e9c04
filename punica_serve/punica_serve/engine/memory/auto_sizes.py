"""The sizes that `engine.num_lora_pages: auto` and `engine.host_cache_bytes: auto` stand for on a device."""

import logging

import torch

from punica_serve.base_model.lora_layout import pages_of_rank
from punica_serve.base_model.memory_budget import (
    adapter_num_bytes,
    auto_host_bytes,
    auto_lora_pages,
    lora_pages_within,
)
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.memory.available_memory import available_bytes
from punica_serve.engine.memory.device_memory import free_bytes, total_bytes

log = logging.getLogger(__name__)

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
    pages = lora_pages_within(model, wanted, max(0, left), dtype.itemsize, config.lora_limits)
    if pages < wanted:
        _log_limit("the GPU", pages // pages_of_rank(config.expected_lora_rank), config)
    return pages


def host_bytes(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Host memory for adapters."""
    if config.host_cache_bytes is not None:
        return config.host_cache_bytes
    rank = config.expected_lora_rank
    wanted = auto_host_bytes(model, config.max_batch_size, rank, dtype.itemsize)
    num_sharing = torch.cuda.device_count() if device.type == "cuda" else 1
    fits = int(_HOST_SHARE * available_bytes()) // max(1, num_sharing)
    if fits < wanted:
        _log_limit("the host", fits // adapter_num_bytes(model, rank, dtype.itemsize), config)
    return min(wanted, fits)


def _log_limit(place: str, num_adapters: int, config: EngineConfig) -> None:
    message = "%s has room for %d adapters of rank %d at once; more are limited by its memory"
    log.info(message, place, num_adapters, config.expected_lora_rank)
