"""Random weights in the layout of the pool's pages, for adapters that have a shape but no files."""

from collections.abc import Mapping

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packing import PackedAdapter, pack_share, packed_num_bytes, packed_views

#: Small enough that a model's outputs stay finite.
STANDARD_DEVIATION = 0.02

#: Numbers generated per adapter and then repeated: all of a large one would take half a second of a core.
_NUM_GENERATED = 1 << 20


def noise(count: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """[count] normally distributed numbers."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(count, dtype=dtype, device=device).normal_(std=STANDARD_DEVIATION, generator=generator)


def repeated_noise(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """[count] numbers that repeat after the first million."""
    generated = noise(min(count, _NUM_GENERATED), dtype, torch.device("cpu"), seed)
    return generated.repeat(-(-count // len(generated)))[:count]


def pack_dummy(
    memory: Tensor, number: int, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype
) -> PackedAdapter:
    """Packs the dummy adapter of that number, or a rank's share of it, into uint8 [packed_num_bytes].

    It is the same adapter in groups of any size, so a rank makes all of it, in memory of its own.
    """
    if model.rank.size == 1:
        return pack_random(memory, repeated_noise(len(memory) // dtype.itemsize, dtype, number), ranks, model, dtype)
    all_memory = torch.empty(packed_num_bytes(ranks, model.whole, dtype), dtype=torch.uint8)
    everything = pack_dummy(all_memory, number, ranks, model.whole, dtype)
    return pack_share(memory, everything, ranks, model, dtype)


def pack_random(
    memory: Tensor, numbers: Tensor, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype
) -> PackedAdapter:
    """Fills uint8 ``memory``, as long as packed_num_bytes says, with ``numbers``; rows beyond the rank become zero."""
    memory.view(dtype).copy_(numbers)
    packed = packed_views(memory, ranks, model, dtype)
    for group, pages in packed.groups.items():
        rows = (
            max(ranks[projection.name] for projection in model.spec.group(group).projections)
            - (len(pages.a) - 1) * LORA_PAGE_RANKS
        )
        pages.a[-1, ..., rows:, :] = 0
        pages.b[-1, ..., rows:, :] = 0
    return packed
