"""The sum of a projection's parts before ranks exchange it: split-K partial sums, and what LoRA adds."""

from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape


def sum_parts(out: Tensor, parts: Tensor, delta: Tensor | None, *, pdl: bool = False) -> None:
    """out = parts + delta, added in float32 and rounded once.

    out: [num_rows, h]; parts: like out, or float32 split-K partial sums [splits, num_rows, h]; delta: like out; None
    adds nothing. `pdl`, on CUDA, lets it start while the kernel before it on the stream ends. Raises ValueError when
    the shapes do not fit.
    """
    require_shape("out", out, *parts.shape[-2:])
    if delta is not None:
        require_shape("delta", delta, *out.shape)
    if out.is_cuda:
        from punica_kernels.gpu import partial_sums

        require_dense_rows(out=out, parts=parts, delta=delta)
        partial_sums.sum_parts(out, parts, delta, pdl=pdl)
        return
    total = parts.sum(0) if parts.dim() == 3 else parts
    out.copy_(total if delta is None else total.float().add(delta))
