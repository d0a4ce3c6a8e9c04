"""The activations that gate an MLP."""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from punica_kernels.activation import gelu_and_mul, silu_and_mul
from punica_serve.base_model.model_spec import Activation
from punica_serve.models.linear import Projected


def _gated(kernel: Callable[..., None], gate_up: Projected) -> Tensor:
    """g(gate) * up: [rows, 2 * inner] -> [rows, inner]."""
    y = gate_up.y
    out = y.new_empty(y.shape[0], y.shape[1] // 2)
    kernel(out, y, gate_up.delta, pdl=gate_up.pdl)
    return out


ACTIVATIONS: dict[Activation, Callable[[Projected], Tensor]] = {
    "silu": partial(_gated, silu_and_mul),
    "gelu_tanh": partial(_gated, gelu_and_mul),
}
