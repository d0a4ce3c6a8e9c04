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
#: A block leaves behind its highest logit, the logit of its best token, that token's noise and its id, or -1.
_WORDS = tl.constexpr(4)


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


def draw(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, first_token: int, *, masked: bool
) -> Tensor:
    """The best token of each row among those from `first_token` on; see `punica_kernels.sampling.draw`."""
    blocks = _draw_blocks(logits, temperatures, seeds, positions, first_token, masked=masked)
    drawn = blocks.new_empty(len(logits), _WORDS.value)
    _pick(drawn, blocks, temperatures, blocks.stride(1), blocks.stride(0), blocks.shape[1], whole=False)
    return drawn


def pick_drawn(tokens: Tensor, drawn: Tensor, temperatures: Tensor) -> None:
    """tokens = the best of each row in all parts [parts, R, 4]; see `punica_kernels.sampling.pick_drawn`."""
    _pick(tokens, drawn, temperatures, drawn.stride(0), drawn.stride(1), len(drawn), whole=True)


def _sample_unfiltered(
    tokens: Tensor, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, *, masked: bool
) -> None:
    """tokens = the next token of each row, without filters."""
    blocks = _draw_blocks(logits, temperatures, seeds, positions, 0, masked=masked)
    _pick(tokens, blocks, temperatures, blocks.stride(1), blocks.stride(0), blocks.shape[1], whole=True)


def _draw_blocks(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, first_token: int, *, masked: bool
) -> Tensor:
    """float32 [R, blocks, 4]: the best token of each block of tokens."""
    num_rows, vocab_size = logits.shape
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    drawn = torch.empty(num_rows, num_blocks, _WORDS.value, dtype=torch.float32, device=logits.device)
    if num_rows:
        _sample_blocks[(num_rows, num_blocks)](
            drawn,
            logits,
            temperatures,
            seeds,
            positions,
            logits.stride(0),
            vocab_size,
            first_token,
            BLOCK=_BLOCK,
            MASKED=masked,
            num_warps=4,
        )
    return drawn


def _pick(
    out: Tensor,
    drawn: Tensor,
    temperatures: Tensor,
    block_stride: int,
    row_stride: int,
    num_blocks: int,
    *,
    whole: bool,
) -> None:
    """out = the best of the blocks of each row: `whole`, its token, int64 [R], else all that is kept of it, [R, 4]."""
    if len(out):
        _pick_blocks[(len(out),)](
            out,
            drawn,
            temperatures,
            block_stride,
            row_stride,
            num_blocks,
            BLOCKS=triton.next_power_of_2(num_blocks),
            WHOLE=whole,
            num_warps=1,
        )


@triton.jit
def _sample_blocks(
    drawn,
    logits,
    temperatures,
    seeds,
    positions,
    row_stride,
    vocab_size,
    first_token,
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
        noise = _gumbel_noise(tl.load(seeds + row), tl.load(positions + row), (first_token + start) // 4, BLOCK)
        scores = tl.div_rn(values - _finite(highest), temperature) + noise
    best = tl.argmax(scores, axis=0, tie_break_left=True)
    is_best = offsets == best
    token = tl.where(any_bad > 0, -1, first_token + start + best)
    value = tl.max(tl.where(is_best, values, float("-inf")), axis=0)
    best_noise = tl.max(tl.where(is_best, noise, float("-inf")), axis=0)
    _store_drawn(drawn + (row * tl.num_programs(1) + tl.program_id(1)) * _WORDS, highest, value, best_noise, token)


@triton.jit
def _pick_blocks(
    out, drawn, temperatures, block_stride, row_stride, num_blocks, BLOCKS: tl.constexpr, WHOLE: tl.constexpr
):
    """The best block's best token, scored as in `punica_kernels.sampling`, relative to the row's highest logit."""
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCKS)
    is_block = offsets < num_blocks
    blocks = drawn + row * row_stride + offsets * block_stride
    minus_inf = float("-inf")
    highest = tl.max(tl.load(blocks, mask=is_block, other=minus_inf), axis=0)
    values = tl.load(blocks + 1, mask=is_block, other=minus_inf)
    noise = tl.load(blocks + 2, mask=is_block, other=0.0)
    candidates = tl.load(blocks + 3, mask=is_block, other=0.0)
    temperature = tl.load(temperatures + row)
    scores = tl.div_rn(values - _finite(highest), tl.where(temperature > 0, temperature, 1.0)) + noise
    best = tl.argmax(scores, axis=0, tie_break_left=True)
    is_best = offsets == best
    is_valid = tl.min(candidates, axis=0) >= 0
    if WHOLE:
        is_valid &= highest != minus_inf
    token = tl.where(is_valid, tl.max(tl.where(is_best, candidates, -1.0), axis=0), -1.0)
    if WHOLE:
        tl.store(out + row, token.to(tl.int64))
    else:
        value = tl.max(tl.where(is_best, values, minus_inf), axis=0)
        best_noise = tl.max(tl.where(is_best, noise, minus_inf), axis=0)
        _store_drawn(out + row * _WORDS, highest, value, best_noise, token)


@triton.jit
def _store_drawn(place, highest, value, noise, token):
    tl.store(place, highest)
    tl.store(place + 1, value)
    tl.store(place + 2, noise)
    tl.store(place + 3, token.to(tl.float32))


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
