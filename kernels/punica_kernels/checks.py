"""Checks of arguments before an operator touches memory."""

from torch import Tensor


def require_shape(name: str, tensor: Tensor, *shape: int) -> None:
    """Raises ValueError, naming the argument, unless the tensor has this shape."""
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


def require_dense_rows(**tensors: Tensor | None) -> None:
    """Raises ValueError, naming the argument, unless the last dimension of each tensor lies without gaps in memory."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have a stride of 1 in its last dimension, got {tensor.stride(-1)}")
