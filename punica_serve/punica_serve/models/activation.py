"""The activations that gate an MLP."""

from collections.abc import Callable

from torch import Tensor

from punica_kernels.activation import gelu_and_mul, silu_and_mul
from punica_serve.base_model.model_spec import Activation
from punica_serve.models.linear import Projected


def swiglu(gate_up: Projected) -> Tensor:
    """silu(gate) * up: [rows, 2 * inner] -> [rows, inner]."""
    out = _empty_half(gate_up.y)
    silu_and_mul(out, gate_up.y, gate_up.low_rank or gate_up.delta, pdl=gate_up.pdl)
    return out


def geglu(gate_up: Projected) -> Tensor:
    """gelu(gate) * up: [rows, 2 * inner] -> [rows, inner]."""
    out = _empty_half(gate_up.y)
    gelu_and_mul(out, gate_up.y, gate_up.low_rank or gate_up.delta, pdl=gate_up.pdl)
    return out


def _empty_half(y: Tensor) -> Tensor:
    return y.new_empty(y.shape[0], y.shape[1] // 2)


ACTIVATIONS: dict[Activation, Callable[[Projected], Tensor]] = {"silu": swiglu, "gelu_tanh": geglu}
