"""Root mean square layer normalisation (Zhang and Sennrich, 2019), with the rounding of Hugging Face's models.

A weight of the rows' dtype is Llama's: the quotient is rounded before it meets the weight. A float32 weight is Gemma's:
their product is rounded once.
"""

import torch
from torch import Tensor
from torch.nn import functional

from punica_kernels.block_end import BlockEnd
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


def add_rms_norm(end: BlockEnd, *, pdl: bool = False) -> None:
    """Adds the block's output to the residual, and norms the sum: see `BlockEnd`.

    The sum is made in float32 and rounded once, to residual's dtype. `pdl` as in `rms_norm`. Raises ValueError, naming
    the field, when the shapes do not fit.
    """
    _check_end(end)
    if end.x.is_cuda:
        from punica_kernels.gpu import norm

        require_dense_rows(**{name: value for name, value in end._asdict().items() if name != "eps"})
        norm.add_rms_norm(end, pdl=pdl)
    else:
        total = end.x.sum(0) if end.x.dim() == 3 else end.x
        total = total if end.delta is None else total.float().add(end.delta)
        if end.added_weight is not None:
            _rms_norm(end.out, total, end.added_weight, end.eps)
            total = end.out
        end.residual.add_(total)
        _rms_norm(end.out, end.residual, end.weight, end.eps)


def _check_end(end: BlockEnd) -> None:
    _check(end.out, end.x[0] if end.x.dim() == 3 else end.x, end.weight)
    require_shape("residual", end.residual, *end.out.shape)
    if end.delta is not None:
        require_shape("delta", end.delta, *end.out.shape)
    if end.added_weight is not None:
        require_shape("added_weight", end.added_weight, end.out.shape[1])


def _check(out: Tensor, x: Tensor, weight: Tensor) -> None:
    require_shape("out", out, *x.shape)
    require_shape("weight", weight, x.shape[-1])


def _rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    quotient = functional.rms_norm(x.float(), weight.shape, eps=eps)
    torch.mul(quotient.to(weight.dtype), weight, out=out)
