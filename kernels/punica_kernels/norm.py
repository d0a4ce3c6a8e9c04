"""Root mean square layer normalisation (Zhang and Sennrich, 2019), with the rounding of Hugging Face's Llama."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    The quotient is computed in float32 and rounded to x's dtype before it meets the weight. out, x: [num_rows, h] of
    one dtype, and may be the same tensor; weight: [h].
    """
    quotient = functional.rms_norm(x.float(), weight.shape, eps=eps)
    torch.mul(quotient.to(x.dtype), weight, out=out)


def add_rms_norm(out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """residual += x in place, then out = rms_norm(residual). All [num_rows, h] of one dtype; out may be x."""
    residual.add_(x)
    rms_norm(out, residual, weight, eps)
