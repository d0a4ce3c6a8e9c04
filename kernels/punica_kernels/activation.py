"""The gated activations of MLPs: SwiGLU, and GeGLU with the tanh approximation of gelu (Shazeer, 2020)."""

import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.low_rank import LowRankDelta


def silu_and_mul(
    out: Tensor, gate_up: Tensor, delta: Tensor | LowRankDelta | None = None, *, pdl: bool = False
) -> None:
    """out = silu(gate) * up, where [gate, up] = gate_up + delta.

    silu(gate) is rounded to gate_up's dtype before it meets up, as Hugging Face's Llama rounds it; the sum with delta
    stays float32. gate_up: [num_rows, 2 * I], the gate first; out: [num_rows, I] of the same dtype; delta: as gate_up,
    of its dtype or float32, or on a GPU its factors, without `pdl`; None adds nothing. `pdl`, on CUDA, lets it start
    while the kernel before it on the stream ends. Raises ValueError when the shapes do not fit.
    """
    if isinstance(delta, LowRankDelta):
        _expand_and_activate(out, gate_up, delta, gelu=False)
        return
    _check(out, gate_up, delta)
    if out.is_cuda:
        from punica_kernels.gpu import activation

        activation.silu_and_mul(out, gate_up, delta, pdl=pdl)
    else:
        gate, up = _halves(gate_up, delta)
        torch.mul(functional.silu(gate).to(out.dtype), up, out=out)


def gelu_and_mul(
    out: Tensor, gate_up: Tensor, delta: Tensor | LowRankDelta | None = None, *, pdl: bool = False
) -> None:
    """out = gelu(gate) * up, as ``silu_and_mul``, with gelu's approximation by tanh (Hendrycks and Gimpel, 2016)."""
    if isinstance(delta, LowRankDelta):
        _expand_and_activate(out, gate_up, delta, gelu=True)
        return
    _check(out, gate_up, delta)
    if out.is_cuda:
        from punica_kernels.gpu import activation

        activation.gelu_and_mul(out, gate_up, delta, pdl=pdl)
    else:
        gate, up = _halves(gate_up, delta)
        torch.mul(functional.gelu(gate, approximate="tanh").to(out.dtype), up, out=out)


def _expand_and_activate(out: Tensor, gate_up: Tensor, delta: LowRankDelta, *, gelu: bool) -> None:
    from punica_kernels.gpu.sgmv_activation import expand_and_activate

    expand_and_activate(out, gate_up, delta, gelu=gelu)


def _halves(gate_up: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
    gate, up = (gate_up if delta is None else gate_up.float().add(delta)).chunk(2, dim=-1)
    return gate, up


def _check(out: Tensor, gate_up: Tensor, delta: Tensor | None) -> None:
    num_rows, width = out.shape
    require_shape("gate_up", gate_up, num_rows, 2 * width)
    if delta is not None:
        require_shape("delta", delta, num_rows, 2 * width)
    if out.is_cuda:
        require_dense_rows(out=out, gate_up=gate_up, delta=delta)
