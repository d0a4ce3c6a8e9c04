"""Programmatic dependent launch (PDL) of the project's Triton kernels.

It lets a kernel start while its predecessor on the stream ends. It takes two sides: the predecessor *triggers* its
dependents early (``PDL_TRIGGER``), and the dependent *waits* before it reads or writes anything that earlier kernels
may still write or read (``PDL_WAIT``).
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch (compute capability 9.0)."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def pdl_options(device: torch.device, *, wait: bool, trigger: bool = True) -> dict[str, Any]:
    """The PDL keywords of a launch, all off where the device lacks PDL.

    ``wait`` makes the launch a dependent one. ``trigger`` lets the kernel after it start early, if that waits.
    """
    is_supported = supports_pdl(device)
    flags = {"PDL_WAIT": is_supported and wait, "PDL_TRIGGER": is_supported and trigger}
    return flags | {"launch_pdl": True} if flags["PDL_WAIT"] else flags


@triton.jit
def await_predecessors(PDL_WAIT: tl.constexpr):
    """Waits until all earlier kernels of the stream have ended.

    A kernel calls it on every path, even one that writes nothing: its own dependents rely on its predecessors too.
    """
    if PDL_WAIT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def start_dependents(PDL_TRIGGER: tl.constexpr):
    """Lets the kernel after this one start, once all programs have called it."""
    if PDL_TRIGGER:
        tl.extra.cuda.gdc_launch_dependents()
