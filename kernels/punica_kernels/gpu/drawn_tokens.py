"""Drawn tokens in Triton. Arguments are checked by `punica_kernels.drawn_tokens`, which has the shapes."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import launch_options

_BLOCK = 128


def place_drawn(token_ids: Tensor, sources: Tensor, draws: Tensor) -> None:
    """token_ids[i] = draws[sources[i]] wherever sources[i] is not negative, one launch."""
    num_rows = len(token_ids)
    if num_rows:
        _place_drawn[(triton.cdiv(num_rows, _BLOCK),)](
            token_ids, sources, draws, num_rows, BLOCK=_BLOCK, **launch_options(4)
        )


@triton.jit
def _place_drawn(token_ids, sources, draws, num_rows, BLOCK: tl.constexpr):
    """One program per block of rows."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(sources + row, mask=row < num_rows, other=-1)
    is_drawn = source >= 0
    drawn = tl.load(draws + source, mask=is_drawn, other=0)
    tl.store(token_ids + row, tl.maximum(drawn, 0).to(tl.int32), mask=is_drawn)
