"""The activations that gate an MLP."""

from collections.abc import Callable

from torch import Tensor

from punica_kernels.activation import silu_and_mul
from punica_serve.base_model.model_spec import Activation
from punica_serve.models.linear import Projected


def swiglu(gate_up: Projected) -> Tensor:
    """silu(gate) * up: [rows, 2 * inner] -> [rows, inner]."""
    y = gate_up.y
    out = y.new_empty(y.shape[0], y.shape[1] // 2)
    silu_and_mul(out, y, gate_up.delta, pdl=gate_up.pdl)
    return out


ACTIVATIONS: dict[Activation, Callable[[Projected], Tensor]] = {"silu": swiglu}
