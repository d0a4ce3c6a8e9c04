"""How the project's Triton kernels are launched.

Programmatic dependent launch (PDL) lets a kernel start while its predecessor on the stream ends. It takes two sides:
the predecessor *triggers* its dependents early (``PDL_TRIGGER``), and the dependent *waits* before it reads or writes
anything that earlier kernels may still write or read (``PDL_WAIT``).
"""

from functools import cache
from typing import Any

import torch

#: CUDA's limit on a grid's y dimension, along which a step's rows are laid out.
MAX_GRID_Y = 65_535


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch (compute capability 9.0)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Those of a CUDA device."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def pdl_options(device: torch.device, *, wait: bool, trigger: bool = True) -> dict[str, Any]:
    """The PDL keywords of a launch, all off where the device lacks PDL.

    ``wait`` makes the launch a dependent one. ``trigger`` lets the kernel after it start early, if that waits.
    """
    is_supported = supports_pdl(device)
    flags = {"PDL_WAIT": is_supported and wait, "PDL_TRIGGER": is_supported and trigger}
    return flags | {"launch_pdl": True} if flags["PDL_WAIT"] else flags
