"""Small tensors to a device and back without waiting for it."""

from collections.abc import Sequence as Series
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def to_device(
    values: Series[float] | Series[int] | Series[Series[int]], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A tensor of these values. On CUDA the copy is queued; torch keeps its source until it has run."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def array_to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """The same for an array that nobody writes any more."""
    values = torch.from_numpy(array)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def to_host(tensor: Tensor) -> Tensor:
    """A copy on the host. From CUDA it holds the values only when the stream has reached this point."""
    if tensor.device.type != "cuda":
        return tensor.clone()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
