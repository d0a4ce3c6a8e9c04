"""Which launches the kernel for long prompts on Hopper serves (`punica_kernels.gpu.hopper_prompts`).

A CUDA graph fixes a launch before any context is known, so the new tokens that it has room for decide.
"""

from functools import cache

import torch

#: Rows of its work tiles, a query row of one head each.
LONG_PROMPT_BLOCK_M = 128
#: Up to so many new tokens, tiles of 64 rows took less time where the context is as short (docs/notes/performance.md).
_MAX_SHORT_ROWS = 512
#: Sizes of heads for which it took less time. With heads of 64 it took more.
_HEAD_DIMS = (128, 256)
_HOPPER = 9


def are_long_prompts(max_query_rows: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the kernel serves launches of so many new tokens of a request, at most."""
    is_served = head_dim in _HEAD_DIMS and dtype.itemsize == 2 and is_hopper(device)
    return is_served and max_query_rows > _MAX_SHORT_ROWS


@cache
def is_hopper(device: torch.device) -> bool:
    """Whether it is a Hopper GPU (compute capability 9.0)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == _HOPPER
