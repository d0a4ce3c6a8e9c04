"""SGMV's shrink of an embedding in Triton: x is one-hot, so v = x A picks a column of A for each row.

It writes v as ``sgmv_shrink`` does, for the same expand: the column is the first partial sum, and the others are zero.
"""

import triton
import triton.language as tl

from punica_kernels.gpu.lora_constants import (
    BLOCK_FIRST_ROW,
    BLOCK_NUM_ROWS,
    BLOCK_NUMBER,
    BLOCK_RANKS,
    FIRST_BLOCK_PAGE,
    PAGE_RANKS,
    RANK_BLOCK_WORDS,
)


@triton.jit
def sgmv_embedding_shrink(
    v,
    token_ids,
    a,
    rank_blocks,
    first_token,
    num_tokens,
    page_stride,
    MAX_RANKS: tl.constexpr,
    SPLIT_K: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """v[row, split, rank] for one rank block. Grid: rank blocks. Tokens that A does not have count as zeros."""
    words = rank_blocks + tl.program_id(0) * RANK_BLOCK_WORDS
    rows = tl.load(words + BLOCK_NUM_ROWS)
    if rows > 0:
        tile, ranks = tl.arange(0, TILE_ROWS), tl.arange(0, BLOCK_RANKS)
        live = tile < rows
        row = tl.load(words + BLOCK_FIRST_ROW).to(tl.int64) + tile
        token = tl.load(token_ids + row, mask=live, other=0).to(tl.int64) - first_token
        known = live & (token >= 0) & (token < num_tokens)
        page = tl.where(
            ranks < PAGE_RANKS, tl.load(words + FIRST_BLOCK_PAGE), tl.load(words + FIRST_BLOCK_PAGE + 1)
        ).to(tl.int64)
        place = page * page_stride + (ranks % PAGE_RANKS).to(tl.int64) * num_tokens
        inside = known[:, None] & (page >= 0)[None, :]
        column = tl.load(a + place[None, :] + token[:, None], mask=inside, other=0.0).to(tl.float32)
        out = v + row[:, None] * (SPLIT_K * MAX_RANKS) + tl.load(words + BLOCK_NUMBER) * BLOCK_RANKS + ranks[None, :]
        tl.store(out, column, mask=live[:, None])
        for split in tl.static_range(1, SPLIT_K):
            tl.store(out + split * MAX_RANKS, tl.zeros_like(column), mask=live[:, None])
