"""Sampling in Triton: `punica_kernels.sampling` without loops, copies of the logits or waits for the device.

Two launches. The first scores one block of tokens of one row per program and keeps the block's best token; the second
picks the best block of each row. The noise is generated in registers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.filters import apply_top_k_top_p_min_p
from punica_kernels.sampling_rows import SamplingRows, scale_logits

_BLOCK = 2048
#: A block's highest logit, the logit of its best token and that token's noise.
_WORDS = tl.constexpr(3)


def sample(tokens: Tensor, logits: Tensor, rows: SamplingRows, *, masked: bool = False) -> None:
    """tokens = the next token of each row, int64 [R]; see `punica_kernels.sampling.sample`."""
    _sample_unfiltered(tokens, logits, rows.temperatures, rows.seeds, rows.positions, masked=masked)
    filters = rows.filters
    if filters is not None:
        temperatures = rows.temperatures.index_select(0, filters.rows)
        scores = scale_logits(logits.index_select(0, filters.rows), temperatures)
        apply_top_k_top_p_min_p(scores, filters.top_k, filters.top_p, filters.min_p)
        filtered = torch.empty_like(filters.rows)
        seeds, positions = rows.seeds.index_select(0, filters.rows), rows.positions.index_select(0, filters.rows)
        _sample_unfiltered(filtered, scores, torch.ones_like(temperatures), seeds, positions, masked=True)
        is_valid = tokens.index_select(0, filters.rows) >= 0
        tokens.index_copy_(0, filters.rows, filtered.where(is_valid, -1))


def _sample_unfiltered(
    tokens: Tensor, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, *, masked: bool
) -> None:
    """tokens = the next token of each row, without filters."""
    num_rows, vocab_size = logits.shape
    if num_rows == 0:
        return
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    best_tokens = torch.empty(num_rows, num_blocks, dtype=torch.int32, device=logits.device)
    best_scores = torch.empty(num_rows, num_blocks, _WORDS.value, dtype=torch.float32, device=logits.device)
    _sample_blocks[(num_rows, num_blocks)](
        best_tokens,
        best_scores,
        logits,
        temperatures,
        seeds,
        positions,
        logits.stride(0),
        vocab_size,
        BLOCK=_BLOCK,
        MASKED=masked,
        num_warps=4,
    )
    _pick_blocks[(num_rows,)](
        tokens,
        best_tokens,
        best_scores,
        temperatures,
        num_blocks,
        BLOCKS=triton.next_power_of_2(num_blocks),
        num_warps=1,
    )


@triton.jit
def _sample_blocks(
    best_tokens,
    best_scores,
    logits,
    temperatures,
    seeds,
    positions,
    row_stride,
    vocab_size,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):
    """The best token of a block of a row's tokens, or -1 where a logit is not finite."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    offsets = tl.arange(0, BLOCK)
    is_token = start + offsets < vocab_size
    values = tl.load(logits + row * row_stride + start + offsets, mask=is_token, other=float("-inf")).to(tl.float32)
    is_bad = (values != values) | (values == float("inf"))
    if not MASKED:
        is_bad |= is_token & (values == float("-inf"))
    any_bad = tl.max(is_bad.to(tl.int32), axis=0)
    values = tl.where(is_bad, float("-inf"), values)
    highest = tl.max(values, axis=0)
    noise = tl.zeros((BLOCK,), dtype=tl.float32)
    scores = values
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        # Relative to the block's highest logit, where float32 is most precise.
        noise = _gumbel_noise(tl.load(seeds + row), tl.load(positions + row), start // 4, BLOCK)
        scores = tl.div_rn(values - _finite(highest), temperature) + noise
    best = tl.argmax(scores, axis=0, tie_break_left=True)
    is_best = offsets == best
    block = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_tokens + block, tl.where(any_bad > 0, -1, start + best))
    tl.store(best_scores + block * _WORDS, highest)
    tl.store(best_scores + block * _WORDS + 1, tl.max(tl.where(is_best, values, float("-inf")), axis=0))
    tl.store(best_scores + block * _WORDS + 2, tl.max(tl.where(is_best, noise, float("-inf")), axis=0))


@triton.jit
def _pick_blocks(tokens, best_tokens, best_scores, temperatures, num_blocks, BLOCKS: tl.constexpr):
    """The best block's best token, scored as in `punica_kernels.sampling`, relative to the row's highest logit."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCKS)
    is_block = offsets < num_blocks
    blocks = row * num_blocks + offsets
    candidates = tl.load(best_tokens + blocks, mask=is_block, other=0)
    minus_inf = float("-inf")
    highest = tl.max(tl.load(best_scores + blocks * _WORDS, mask=is_block, other=minus_inf), axis=0)
    values = tl.load(best_scores + blocks * _WORDS + 1, mask=is_block, other=minus_inf)
    noise = tl.load(best_scores + blocks * _WORDS + 2, mask=is_block, other=0.0)
    temperature = tl.load(temperatures + row)
    scores = tl.div_rn(values - _finite(highest), tl.where(temperature > 0, temperature, 1.0)) + noise
    best = tl.argmax(scores, axis=0, tie_break_left=True)
    is_valid = (tl.min(candidates, axis=0) >= 0) & (highest != minus_inf)
    token = tl.max(tl.where(offsets == best, candidates, -1), axis=0)
    tl.store(tokens + row, tl.where(is_valid, token, -1).to(tl.int64))


@triton.jit
def _finite(highest):
    """0 in place of -inf, for a row in which no token is possible."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def _gumbel_noise(seed, position, first_counter, BLOCK: tl.constexpr):
    """float32 [BLOCK] noise of consecutive tokens, four to a Philox counter."""
    counters = (first_counter + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zeros = counters * 0
    w0, w1, w2, w3 = tl.philox(seed, counters, zeros + position.to(tl.uint32), zeros, zeros)
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    uniform = ((words >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
    return -tl.log(-tl.log(uniform))
