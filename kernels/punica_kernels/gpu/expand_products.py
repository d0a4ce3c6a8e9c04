"""The products of SGMV's expand: a row's on CUDA cores, a tile's on tensor cores, both with float32 sums of v."""

import triton
import triton.language as tl

from punica_kernels.gpu.lora_constants import BLOCK_RANKS


@triton.jit
def row_product(v, w, blocks_left, BLOCKS: tl.constexpr, sizes: tl.constexpr):
    """[outputs]: a row's sums over the splits, times the weights of the blocks that are left of BLOCKS."""
    splits = tl.arange(0, sizes.SPLIT_K)[:, None]
    ranks = tl.arange(0, BLOCKS * BLOCK_RANKS)[None, :]
    mask = (splits >= 0) & (ranks // BLOCK_RANKS < blocks_left)
    partial = tl.load(v + splits * sizes.MAX_RANKS + ranks, mask=mask, other=0.0)
    return tl.sum(w.to(tl.float32) * tl.sum(partial, axis=0)[:, None], axis=0)


@triton.jit
def sum_rows(v_rows, live, sizes: tl.constexpr):
    """[rows, ranks]: the sums over the splits for a tile of rows."""
    partial = v_rows[:, None] + tl.arange(0, BLOCK_RANKS)[None, :]
    if sizes.SPLIT_K == 1:
        return tl.load(partial, mask=live[:, None], other=0.0)
    half = partial + sizes.SPLIT_K // 2 * sizes.MAX_RANKS
    acc = tl.load(partial, mask=live[:, None], other=0.0)
    other = tl.load(half, mask=live[:, None], other=0.0)
    for split in tl.static_range(1, sizes.SPLIT_K // 2):
        acc += tl.load(partial + split * sizes.MAX_RANKS, mask=live[:, None], other=0.0)
        other += tl.load(half + split * sizes.MAX_RANKS, mask=live[:, None], other=0.0)
    # A reduction instead of a sum: the compiler would convert each term of a sum to the product's layout.
    return tl.sum(tl.join(acc, other), axis=2)


@triton.jit
def product(v, b, acc):
    """acc + v b for float32 v. If b is half precision, the product is done twice, so that v loses no precision.

    The range of float16 is too small for v, so each row is scaled by a power of two first, and scaled back afterwards.
    """
    if b.dtype == tl.float32:
        return tl.dot(v, b, acc, input_precision="ieee")
    if b.dtype == tl.float16:
        scale, inverse = _powers_of_two(tl.max(tl.abs(v), axis=1))
        return acc + _split_product(v * inverse[:, None], b, tl.zeros_like(acc)) * scale[:, None]
    return _split_product(v, b, acc)


@triton.jit
def _split_product(v, b, acc):
    high = v.to(b.dtype)
    low = (v - high.to(tl.float32)).to(b.dtype)
    return tl.dot(low, b, tl.dot(high, b, acc))


@triton.jit
def _powers_of_two(x):
    """The largest power of two within each float32, and its inverse, both in the range of normal numbers."""
    exponent = tl.minimum(tl.maximum((x.to(tl.int32, bitcast=True) >> 23) & 0xFF, 1), 253)
    return (exponent << 23).to(tl.float32, bitcast=True), ((254 - exponent) << 23).to(tl.float32, bitcast=True)
