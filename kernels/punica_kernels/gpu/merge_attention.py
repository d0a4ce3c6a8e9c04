"""The merge of attention's parts in Triton. Arguments are checked by `punica_kernels.merge_attention`."""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import can_overlap, launch_options

#: Heads of a row that one program merges.
_BLOCK_HEADS = 4


def merge_attention(out: Tensor, log_sums: Tensor, copy_starts: Tensor, *, chained: bool = False) -> None:
    """Adds to each row the parts of its copies, in one launch."""
    num_rows, (_, heads, head_dim) = len(copy_starts) - 1, out.shape
    if num_rows == 0:
        return
    overlap = can_overlap(out.device)
    block_heads = min(_BLOCK_HEADS, triton.next_power_of_2(heads))
    _merge_attention[(num_rows, triton.cdiv(heads, block_heads))](
        out,
        log_sums,
        copy_starts,
        num_rows,
        *out.stride()[:2],
        log_sums.stride(0),
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_HEADS=block_heads,
        BLOCK_DIM=triton.next_power_of_2(head_dim),
        PDL=overlap,
        CHAINED=overlap and chained,
        **launch_options(block_heads, overlap=overlap and chained),
    )


@triton.jit
def _merge_attention(
    out,
    log_sums,
    copy_starts,
    num_rows,
    row_stride,
    head_stride,
    log_sum_stride,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program per row and block of heads. Weights are relative to the largest so far, so that none overflows."""
    row = tl.program_id(0)
    # Not written by the kernel before, so it may be read while that still runs.
    start = tl.load(copy_starts + row)
    end = tl.load(copy_starts + row + 1)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    if start < end:
        head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
        column = tl.arange(0, BLOCK_DIM)[None, :]
        is_head = head < HEADS
        mask = is_head[:, None] & (column < HEAD_DIM)
        cells = head[:, None] * head_stride + column
        row_cells = row.to(tl.int64) * row_stride + cells
        total = tl.load(out + row_cells, mask=mask, other=0.0).to(tl.float32)
        highest = tl.load(log_sums + row * log_sum_stride + head, mask=is_head, other=0.0)
        weights = tl.full((BLOCK_HEADS,), 1.0, tl.float32)
        for copy in range(start, end):
            part = num_rows + copy
            values = tl.load(out + part.to(tl.int64) * row_stride + cells, mask=mask, other=0.0).to(tl.float32)
            log_sum = tl.load(log_sums + part * log_sum_stride + head, mask=is_head, other=0.0)
            new_highest = tl.maximum(highest, log_sum)
            old_scale = tl.exp2(highest - new_highest)
            scale = tl.exp2(log_sum - new_highest)
            total = total * old_scale[:, None] + values * scale[:, None]
            weights = weights * old_scale + scale
            highest = new_highest
        tl.store(out + row_cells, (total / weights[:, None]).to(out.dtype.element_ty), mask=mask)
