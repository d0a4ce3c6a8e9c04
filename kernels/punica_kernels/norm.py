"""Root mean square layer normalisation (Zhang and Sennrich, 2019), with the rounding of Hugging Face's models.

A weight of the rows' dtype is Llama's: the quotient is rounded before it meets the weight. A float32 weight is Gemma's:
their product is rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.checks import require_dense_rows, require_shape


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, pdl: bool = False) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    The quotient is computed in float32 and rounded to the weight's dtype before it meets the weight. out, x: [num_rows,
    h] of one dtype, and may be the same tensor; weight: [h], float32 or of x's dtype. `pdl`, on CUDA, lets it start
    while the kernel before it on the stream ends. Raises ValueError when the shapes do not fit.
    """
    _check(out, x, weight)
    if x.is_cuda:
        from punica_kernels.gpu import norm

        require_dense_rows(out=out, x=x, weight=weight)
        norm.rms_norm(out, x, weight, eps, pdl=pdl)
    else:
        _rms_norm(out, x, weight, eps)


def add_rms_norm(
    out: Tensor,
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    delta: Tensor | None = None,
    added_weight: Tensor | None = None,
    *,
    pdl: bool = False,
) -> None:
    """residual += x + delta in place, then out = rms_norm(residual).

    With `added_weight` [h], residual += rms_norm(x + delta) by that weight, as behind the blocks of Gemma 2 and 3.

    The sum is made in float32 and rounded once, to residual's dtype. out, x, residual: [num_rows, h] of one dtype; out
    may be x, and x may be float32 split-K partial sums [splits, num_rows, h]. delta: [num_rows, h] of that dtype or
    float32; None adds nothing. `pdl` as in `rms_norm`. Raises ValueError when the shapes do not fit.
    """
    _check(out, x[0] if x.dim() == 3 else x, weight)
    require_shape("residual", residual, *out.shape)
    if delta is not None:
        require_shape("delta", delta, *out.shape)
    if added_weight is not None:
        require_shape("added_weight", added_weight, out.shape[1])
    if x.is_cuda:
        from punica_kernels.gpu import norm

        require_dense_rows(out=out, x=x, residual=residual, weight=weight, delta=delta, added_weight=added_weight)
        norm.add_rms_norm(out, x, residual, weight, eps, delta, added_weight, pdl=pdl)
    else:
        total = x.sum(0) if x.dim() == 3 else x
        total = total if delta is None else total.float().add(delta)
        if added_weight is not None:
            _rms_norm(out, total, added_weight, eps)
            total = out
        residual.add_(total)
        _rms_norm(out, residual, weight, eps)


def _check(out: Tensor, x: Tensor, weight: Tensor) -> None:
    require_shape("out", out, *x.shape)
    require_shape("weight", weight, x.shape[-1])


def _rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    quotient = functional.rms_norm(x.float(), weight.shape, eps=eps)
    torch.mul(quotient.to(weight.dtype), weight, out=out)
