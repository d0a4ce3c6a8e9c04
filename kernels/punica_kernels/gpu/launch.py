"""How the project's Triton kernels are launched."""

from functools import cache
from typing import Any

import torch

#: Programs of a CUDA grid along its y dimension, which is where the kernels have what grows with a step's rows.
MAX_GRID_Y = 65_535


@cache
def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start there while the one before it ends (programmatic dependent launch)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(num_warps: int, *, overlap: bool = False) -> dict[str, Any]:
    """Keywords of a launch; with `overlap`, of a programmatic dependent one: the kernel must wait before it reads."""
    return {"num_warps": num_warps, **({"launch_pdl": True} if overlap else {})}
