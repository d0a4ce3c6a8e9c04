"""What operators check before they touch memory."""

from torch import Tensor


def require_shape(name: str, tensor: Tensor, *shape: int) -> None:
    """Raises ValueError, naming the argument, unless the tensor has this shape."""
    if tensor.shape != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
