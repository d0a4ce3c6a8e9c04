"""The gated activation of Llama's MLP: SwiGLU (Shazeer, 2020)."""

import torch
from torch import Tensor
from torch.nn import functional


def silu_and_mul(out: Tensor, gate_up: Tensor) -> None:
    """out = silu(gate) * up. gate_up: [num_rows, 2 * I], the gate first; out: [num_rows, I] of the same dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    torch.mul(functional.silu(gate), up, out=out)
