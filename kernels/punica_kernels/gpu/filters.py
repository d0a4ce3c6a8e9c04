"""Top-k, top-p and min-p filters in Triton, without sorting. `punica_kernels.sampling.filter_logits` has the rules.

A filter keeps the most probable tokens down to a threshold, and the first ones of those at the threshold. Each program
searches the thresholds of one row: it sums over the whole row up to several pivots at once, and repeats until a single
score is left between two of them.
"""

import triton
import triton.language as tl
from torch import Tensor

_NUM_WARPS = 16
#: Tokens summed at once, and masked at once.
_BLOCK, _WIDE_BLOCK = 2048, 8192
_PIVOTS = tl.constexpr(7)
#: The smallest normal float32.
_TINY = tl.constexpr(2.0**-126)
#: The key of the lowest score but -inf, and of -1.
_LOWEST = tl.constexpr(0x7F7FFFFF)
_KEY_OF_ONE = tl.constexpr(0x3F800000)
_OCTAVE = tl.constexpr(1 << 23)


def apply_top_k_top_p_min_p(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> None:
    """Sets to -inf, in place, the scores that each row's filters remove: `filter_logits`, for rows whose highest is 0.

    If probabilities add up to `top_p` except for their last bits, the cut may differ: one token further, or a few of
    many equal ones. A min_p below the smallest normal float32 counts as that.

    scores: float32 [R, V], contiguous; top_k: int64 [R]; top_p, min_p: float32 [R].
    """
    num_rows, vocab_size = scores.shape
    if num_rows:
        sizes = {"BLOCK": _BLOCK, "WIDE": _WIDE_BLOCK}
        _filter_rows[(num_rows,)](scores, top_k, top_p, min_p, vocab_size, **sizes, num_warps=_NUM_WARPS)


@triton.jit
def _filter_rows(scores, top_ks, top_ps, min_ps, vocab_size, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """One program per row. Loops end for NaNs, too; the result of such a row is not read."""
    row = tl.program_id(0).to(tl.int64)
    scores += row * vocab_size
    min_p = tl.load(min_ps + row)
    limit = _key(tl.log(tl.maximum(min_p, _TINY)))
    # The first key whose tokens do not all stay, and how many of them do. All counts are exact in float32.
    end = tl.where(min_p > 0.0, limit, _LOWEST) + 1
    num_last = min_p * 0.0
    top_k = tl.load(top_ks + row)
    if top_k > 0:
        end, num_last = _cut(scores, vocab_size, end, num_last, top_k.to(tl.float32), BLOCK, False)
    # A top_p of 0 must keep the most probable token.
    top_p = tl.maximum(tl.load(top_ps + row), _TINY)
    if top_p < 1.0:
        end, num_last = _cut(scores, vocab_size, end, num_last, top_p, BLOCK, True)
    _mask_out(scores, vocab_size, end, num_last, WIDE)


@triton.jit
def _cut(
    scores,
    vocab_size,
    end,
    num_last,
    target,
    BLOCK: tl.constexpr,
    MASS: tl.constexpr,
):
    """`end` and `num_last` of the fewest tokens whose number, or share of the mass, reaches the target."""
    pivots = _first_pivots(end)
    low = end * 0 - 1
    sums, first, last = _row_sums(scores, vocab_size, low, end, pivots, BLOCK, MASS)
    if MASS:
        target *= sums[_PIVOTS - 1] + num_last * _weight(end, MASS)
    # The threshold is above `low`, up to which the sum is `below`, and at most `high`.
    low, below, high = _narrow(low, target * 0.0, end, pivots, sums, target)
    while high - low > 1:
        pivots = _pivots(low, high)
        sums, first, last = _row_sums(scores, vocab_size, low, high, pivots, BLOCK, MASS)
        if first == last:
            low, high = first - 1, first
        else:
            low, below, high = _narrow(low, below, high, pivots, sums, target)
            low, high = tl.maximum(low, first - 1), tl.minimum(high, last)
    num_needed = tl.maximum(tl.ceil((target - below) / _weight(high, MASS)), 1.0)
    return high, tl.where(high == end, tl.minimum(num_needed, num_last), num_needed)


@triton.jit
def _first_pivots(end):
    """The keys of -1, -2, -4 and so on, then the one before the end; none reaches the end."""
    pivots = tl.tuple(())
    for number in tl.static_range(_PIVOTS - 1):
        pivots += (tl.minimum(_KEY_OF_ONE + number * _OCTAVE, end - 1),)
    pivots += (end - 1,)
    return pivots


@triton.jit
def _pivots(low, high):
    """Keys that divide (low, high] into equal parts and lie within it."""
    step = (high - low + _PIVOTS) // (_PIVOTS + 1)
    pivots = tl.tuple(())
    for number in tl.static_range(_PIVOTS):
        pivots += (tl.minimum(low + (number + 1) * step, high - 1),)
    return pivots


@triton.jit
def _narrow(low, below, high, pivots, sums, target):
    """The interval between two pivots in which the sum reaches the target."""
    for number in tl.static_range(_PIVOTS):
        high = tl.where(sums[_PIVOTS - 1 - number] >= target, pivots[_PIVOTS - 1 - number], high)
    for number in tl.static_range(_PIVOTS):
        reaches = sums[number] >= target
        low = tl.where(reaches, low, pivots[number])
        below = tl.where(reaches, below, sums[number])
    return low, below, high


@triton.jit
def _row_sums(scores, vocab_size, low, high, pivots, BLOCK: tl.constexpr, MASS: tl.constexpr):
    """(Number, or mass, of the tokens up to each pivot; the first and the last of their keys above `low` up to `high`).

    Sums over the same tokens are the same to the last bit.
    """
    partial_sums = tl.tuple(())
    for _ in tl.static_range(_PIVOTS):
        partial_sums += (tl.zeros((BLOCK,), dtype=tl.float32),)
    firsts = tl.full((BLOCK,), float("-inf"), tl.float32)
    lasts = tl.full((BLOCK,), float("inf"), tl.float32)
    highest, lowest = _score(low + 1), _score(high)
    for start in tl.range(0, vocab_size, BLOCK, loop_unroll_factor=4):
        tokens = start + tl.arange(0, BLOCK)
        values = tl.load(scores + tokens, mask=tokens < vocab_size, other=float("-inf"))
        firsts = tl.maximum(firsts, tl.where(values <= highest, values, float("-inf")))
        lasts = tl.minimum(lasts, tl.where(values >= lowest, values, float("inf")))
        weights = tl.exp(values) if MASS else 1.0
        added = tl.tuple(())
        for number in tl.static_range(_PIVOTS):
            added += (tl.where(values >= _score(pivots[number]), partial_sums[number] + weights, partial_sums[number]),)
        partial_sums = added
    sums = tl.tuple(())
    for number in tl.static_range(_PIVOTS):
        sums += (tl.sum(partial_sums[number], axis=0),)
    return sums, _key(tl.max(firsts, axis=0)), _key(tl.min(lasts, axis=0))


@triton.jit
def _mask_out(scores, vocab_size, end, num_last, BLOCK: tl.constexpr):
    """Sets all scores past the end to -inf, and those at the end but the first `num_last`."""
    num_seen = 0
    for start in range(0, vocab_size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        is_token = tokens < vocab_size
        values = tl.load(scores + tokens, mask=is_token, other=float("-inf"))
        keys = _key(values)
        is_last = (keys == end).to(tl.int32)
        num_here = tl.sum(is_last, axis=0)
        stays = keys <= end
        if (num_here > 0) & (num_seen + num_here > num_last):
            number = num_seen + tl.cumsum(is_last, axis=0)
            stays = (keys < end) | ((keys == end) & (number <= num_last))
        num_seen += num_here
        tl.store(scores + tokens, tl.full((BLOCK,), float("-inf"), tl.float32), mask=is_token & ~stays)


@triton.jit
def _weight(key, MASS: tl.constexpr):
    """1, or the probability of the score of this key, times that of the highest."""
    return tl.exp(_score(key)) if MASS else 1.0


@triton.jit
def _key(score):
    return (0.0 - score).to(tl.int32, bitcast=True)


@triton.jit
def _score(key):
    return 0.0 - key.to(tl.float32, bitcast=True)
