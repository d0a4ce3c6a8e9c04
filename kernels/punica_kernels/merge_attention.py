"""Attention to a long context in parts, each over some of its keys, and the merge of their results.

The softmax over all keys is the mean of the parts' softmaxes, weighted by the sums of their exponentials (Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018).
"""

from itertools import pairwise

import torch
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape


def merge_attention(out: Tensor, log_sums: Tensor, copy_starts: Tensor, *, chained: bool = False) -> None:
    """Merge the parts of each row into the row itself.

    Row i of the N rows has a part of its own and those of rows N + copy_starts[i] to N + copy_starts[i + 1] - 1, its
    copies. A row without copies is left as it is; what the copies hold afterwards is of no meaning.

    Args:
        out: [N + copies, heads, head_dim], each part normed by itself.
        log_sums: float32 [N + copies, heads]: of each part, the logarithm to base 2 of its sum of exponentials.
        copy_starts: int32 [N + 1], from 0 on, never falling.
        chained: on CUDA, start while the kernel before this one on the stream ends.

    Raises ValueError, naming the argument, when the shapes do not fit.
    """
    require_shape("log_sums", log_sums, *out.shape[:2])
    require_shape("copy_starts", copy_starts, len(copy_starts))
    if out.is_cuda:
        from punica_kernels.gpu import merge_attention as gpu

        require_dense_rows(out=out, log_sums=log_sums, copy_starts=copy_starts)
        gpu.merge_attention(out, log_sums, copy_starts, chained=chained)
    else:
        _merge_attention(out, log_sums, copy_starts)


def _merge_attention(out: Tensor, log_sums: Tensor, copy_starts: Tensor) -> None:
    starts = copy_starts.tolist()
    num_rows = len(starts) - 1
    for row, (start, end) in enumerate(pairwise(starts)):
        if start < end:
            parts = [row, *range(num_rows + start, num_rows + end)]
            weights = torch.softmax(log_sums[parts].double() * torch.tensor(2.0).log(), dim=0)
            out[row] = (out[parts].double() * weights[:, :, None]).sum(0).to(out.dtype)
