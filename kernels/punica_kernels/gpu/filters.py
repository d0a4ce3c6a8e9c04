"""Filters of sampling in Triton, without sorting. `punica_kernels.sampling.filter_logits` has the rules.

What stays of a row are its most probable tokens down to a threshold, and of those at the threshold the first. So each
program looks for the thresholds of one row: it takes sums over the whole row again and again, and each time knows two
more bits of the threshold's score, which read as an integer orders like the score itself.
"""

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import launch_options

_BLOCK, _NUM_WARPS = 8192, 32
#: Bits of a key are found two at a time, the last one alone: the sign is none of them.
_DESCENTS = tl.constexpr(16)
_FIRST_SHIFT = tl.constexpr(29)
#: The smallest normal float32.
_TINY = tl.constexpr(2.0**-126)
#: The key of -inf, and a greater one.
_LOWEST = tl.constexpr(0x7F800000)
_ALL = tl.constexpr(0x7FFFFFFF)


def keep_top(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Sets to -inf, in place, the scores that each row's filters drop: `filter_logits`, for rows whose highest is 0.

    Where probabilities add up to `top_p` but for their last bits, the cut may lie elsewhere: one token further, or some
    of many that are equal. A min_p below the smallest normal float32 is taken as that.

    scores: float32 [R, V], contiguous; top_k: int64 [R]; top_p, min_p: float32 [R].
    """
    num_rows, vocab_size = scores.shape
    if num_rows:
        options = launch_options(_NUM_WARPS)
        _keep_top[(num_rows,)](scores, top_k, top_p, min_p, scores.stride(0), vocab_size, BLOCK=_BLOCK, **options)


@triton.jit
def _keep_top(scores, top_ks, top_ps, min_ps, row_stride, vocab_size, BLOCK: tl.constexpr):
    """One program per row. Of NaNs, too, loops have an end; nobody reads what such a row gives."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * row_stride
    min_p = tl.load(min_ps + row)
    limit = (0.0 - tl.log(tl.maximum(min_p, _TINY))).to(tl.int32, bitcast=True)
    limit = tl.where(min_p > 0.0, limit, _LOWEST)
    threshold = (limit & 0) | _ALL
    # How many of the tokens at the threshold stay. All counts are exact in float32.
    num_last = limit.to(tl.float32) * 0.0
    top_k = tl.load(top_ks + row)
    if top_k > 0:
        num_live, _, _ = _sums(scores, vocab_size, limit, threshold, _ALL, _ALL, _ALL, BLOCK, False)
        if top_k.to(tl.float32) < num_live:
            count = top_k.to(tl.float32)
            threshold, before = _descend(scores, vocab_size, limit, threshold, 0.0, count, BLOCK, False)
            num_last = count - before
    top_p = tl.load(top_ps + row)
    if top_p < 1.0:
        mass_last = tl.where(threshold == _ALL, 0.0, num_last * _probability(threshold))
        total, _, _ = _sums(scores, vocab_size, limit, threshold, _ALL, _ALL, _ALL, BLOCK, True)
        mass = top_p * (total + mass_last)
        nucleus, before = _descend(scores, vocab_size, limit, threshold, mass_last, mass, BLOCK, True)
        num_needed = tl.maximum(tl.ceil((mass - before) / _probability(nucleus)), 1.0)
        num_last = tl.where(nucleus == threshold, tl.minimum(num_needed, num_last), num_needed)
        threshold = nucleus
    _drop(scores, vocab_size, limit, threshold, num_last, BLOCK)


@triton.jit
def _descend(scores, vocab_size, limit, end, sum_at_end, target, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """(The lowest key up to which the tokens' number, or mass, reaches the target; the same up to the key before).

    Of the tokens at the key `end` only some stay, `sum_at_end` in all, and of those behind it none.
    """
    key = limit & 0
    before = target * 0.0
    for descent in range(_DESCENTS):
        shift = tl.maximum(_FIRST_SHIFT - 2 * descent, 0)
        # The key is one of those from `key` on, in four parts: these are the last ones of the first three.
        pivot_0 = key + (1 << shift) - 1
        pivot_1 = pivot_0 + (1 << shift)
        pivot_2 = pivot_1 + (1 << shift)
        sum_0, sum_1, sum_2 = _sums(scores, vocab_size, limit, end, pivot_0, pivot_1, pivot_2, BLOCK, MASS)
        sum_0 += tl.where(pivot_0 >= end, sum_at_end, 0.0)
        sum_1 += tl.where(pivot_1 >= end, sum_at_end, 0.0)
        sum_2 += tl.where(pivot_2 >= end, sum_at_end, 0.0)
        before = tl.where(sum_0 < target, sum_0, before)
        before = tl.where(sum_1 < target, sum_1, before)
        before = tl.where(sum_2 < target, sum_2, before)
        parts = (sum_0 < target).to(tl.int32) + (sum_1 < target).to(tl.int32) + (sum_2 < target).to(tl.int32)
        key += parts << shift
    return key, before


@triton.jit
def _sums(scores, vocab_size, limit, end, pivot_0, pivot_1, pivot_2, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """Number, or mass, of the tokens up to each of three keys, of those up to `limit` and before `end`.

    Sums over the same tokens are the same to the last bit, whatever the pivots.
    """
    sums_0 = tl.zeros((BLOCK,), dtype=tl.float32)
    sums_1 = tl.zeros((BLOCK,), dtype=tl.float32)
    sums_2 = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, vocab_size, BLOCK):
        keys = _load_keys(scores, start + tl.arange(0, BLOCK), vocab_size)
        weights = _probability(keys) if MASS else tl.full((BLOCK,), 1.0, tl.float32)
        weights = tl.where((keys <= limit) & (keys < end), weights, 0.0)
        sums_0 += tl.where(keys <= pivot_0, weights, 0.0)
        sums_1 += tl.where(keys <= pivot_1, weights, 0.0)
        sums_2 += tl.where(keys <= pivot_2, weights, 0.0)
    return tl.sum(sums_0, axis=0), tl.sum(sums_1, axis=0), tl.sum(sums_2, axis=0)


@triton.jit
def _drop(scores, vocab_size, limit, threshold, num_last, BLOCK: tl.constexpr):
    """-inf for all behind the threshold, and for those at it but the first `num_last`."""
    num_seen = 0
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        keys = _load_keys(scores, tokens, vocab_size)
        is_last = (keys == threshold).to(tl.int32)
        number = num_seen + tl.cumsum(is_last, axis=0)
        num_seen += tl.sum(is_last, axis=0)
        stays = (keys < threshold) | ((keys == threshold) & (number.to(tl.float32) <= num_last))
        is_dropped = (tokens < vocab_size) & ~(stays & (keys <= limit))
        tl.store(scores + tokens, tl.full((BLOCK,), float("-inf"), tl.float32), mask=is_dropped)


@triton.jit
def _load_keys(scores, tokens, vocab_size):
    """int32 [tokens]: 0 for the highest score, which is 0, and the greater the lower the score; past the row `_ALL`."""
    is_token = tokens < vocab_size
    values = tl.load(scores + tokens, mask=is_token, other=0.0)
    return tl.where(is_token, (0.0 - values).to(tl.int32, bitcast=True), _ALL)


@triton.jit
def _probability(keys):
    """Of the scores of these keys, times that of the highest: float32."""
    return tl.exp(0.0 - keys.to(tl.float32, bitcast=True))
