"""Random weights in the layout of the pool's pages, for adapters that exist by their shape alone."""

from collections.abc import Mapping

import torch
from torch import Tensor

from punica_serve.engine.packing import PackedAdapter, packed_views
from punica_serve.lora_layout import LORA_GROUPS, LORA_PAGE_RANKS
from punica_serve.model_config import ModelConfig

#: Small enough that a model's outputs stay finite.
STANDARD_DEVIATION = 0.02

#: Drawn once for an adapter and repeated: drawing all of a large one would take half a second of a core.
_NUM_DRAWN = 1 << 20


def noise(count: int, dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    """[count] normally distributed numbers."""
    generator = torch.Generator(device).manual_seed(seed)
    return torch.empty(count, dtype=dtype, device=device).normal_(std=STANDARD_DEVIATION, generator=generator)


def repeated_noise(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """[count] numbers of which the first million come again and again."""
    drawn = noise(min(count, _NUM_DRAWN), dtype, torch.device("cpu"), seed)
    return drawn.repeat(-(-count // len(drawn)))[:count]


def pack_random(
    memory: Tensor, numbers: Tensor, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype
) -> PackedAdapter:
    """Fills uint8 ``memory``, as long as packed_num_bytes says, with ``numbers``; rows beyond the rank become zero."""
    memory.view(dtype).copy_(numbers)
    packed = packed_views(memory, ranks, model, dtype)
    for group, pages in packed.groups.items():
        rows = max(ranks[module] for module in LORA_GROUPS[group]) - (len(pages.a) - 1) * LORA_PAGE_RANKS
        pages.a[-1, ..., rows:, :] = 0
        pages.b[-1, ..., rows:, :] = 0
    return packed
