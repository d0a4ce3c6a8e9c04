"""Random weights in the layout of the pool's pages, for adapters that have a shape but no files."""

from collections.abc import Mapping

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packing import PackedAdapter, packed_views

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
