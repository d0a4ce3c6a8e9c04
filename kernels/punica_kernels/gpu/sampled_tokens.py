"""Sampled tokens in Triton. `punica_kernels.sampled_tokens` checks the arguments and documents the shapes."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 128


def fill_sampled(token_ids: Tensor, sources: Tensor, sampled_ids: Tensor) -> None:
    """token_ids[i] = sampled_ids[sources[i]] wherever sources[i] is not negative, in one launch."""
    num_rows = len(token_ids)
    if num_rows:
        _fill_sampled[(triton.cdiv(num_rows, _BLOCK),)](
            token_ids, sources, sampled_ids, num_rows, BLOCK=_BLOCK, num_warps=4
        )


@triton.jit
def _fill_sampled(token_ids, sources, sampled_ids, num_rows, BLOCK: tl.constexpr):
    """One program per block of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + row, mask=row < num_rows, other=-1)
    is_sampled = source >= 0
    sampled = tl.load(sampled_ids + source, mask=is_sampled, other=0)
    tl.store(token_ids + row, tl.maximum(sampled, 0).to(tl.int32), mask=is_sampled)
