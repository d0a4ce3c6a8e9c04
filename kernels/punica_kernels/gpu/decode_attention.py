"""Attention of decodes in Triton: one query row per request, over a balanced list of work (`decode_table`).

Decoding reads every key and value once and does next to nothing with them, so what counts is bytes under way. A program
has a tile of keys and one of values on the way at once. Threads own dims and tokens so that a running softmax
(FlashAttention, Dao et al., 2022) of each lane of tokens stays in a thread's registers until the end of an item, but
for the sum over dims.

A request in several items leaves a partial result for each (Flash-Decoding). Whichever program is last to finish adds
them up, always in the order of the tokens, so the result is the same every time.
"""

# A kernel's tuples grow, which no annotation that Triton reads can say.
# mypy: disable-error-code="assignment"

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from punica_kernels import decode_table
from punica_kernels.decode_table import DecodeTable, max_slots
from punica_kernels.gpu.launch import can_overlap, launch_options

ITEM_WORDS = tl.constexpr(decode_table.ITEM_WORDS)
#: Below every score, yet finite: a lane without tokens must not compute inf - inf.
LOWEST = tl.constexpr(-1e38)

#: Programs on one multiprocessor: as many as its registers hold.
PROGRAMS_PER_SM = 5
#: Tokens of a tile that a thread has a part of: more are more bytes under way, and more registers.
TILE_STEPS = 8
_NUM_WARPS = 4
#: Elements of a token's key that a thread has.
_THREAD_DIMS = 8


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Memory for partial results. Launches that run one after the other may share it."""

    #: float32 [slots, heads, head_dim]: weighted values.
    partials: Tensor
    #: float32 [slots, heads, 2]: highest score, sum of weights.
    sums: Tensor
    #: int32 [slots, kv_heads]: how many of a row's items are finished, at its first slot; zeros between launches.
    finished: Tensor


def num_programs(kv_heads: int, device: torch.device) -> int:
    """Programs of a table for each kv head that fill the device once."""
    return max(1, PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count // kv_heads)


def make_workspace(
    num_programs: int, heads: int, kv_heads: int, head_dim: int, device: torch.device
) -> DecodeWorkspace:
    """Enough for tables of so many programs, or fewer."""
    slots = max_slots(num_programs)
    return DecodeWorkspace(
        torch.zeros(slots, heads, head_dim, dtype=torch.float32, device=device),
        torch.zeros(slots, heads, 2, dtype=torch.float32, device=device),
        torch.zeros(slots, kv_heads, dtype=torch.int32, device=device),
    )


def decode_attention(
    out: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: DecodeTable,
    workspace: DecodeWorkspace,
    scale: float,
    *,
    chained: bool = False,
) -> None:
    """out = softmax(q k^T * scale) v, one launch; sums are float32.

    `chained` lets it start while the kernel before it on the stream ends, which then must not write the table.

    Args:
        out, q: [rows, heads, head_dim] of one dtype, dims side by side; head_dim a power of two from 8 to 256.
        keys, values: [num_pages, page_size, kv_heads, head_dim], views of one layer of the cache, strided alike. What
            lies in a page beyond its request is never seen, NaN or not.
        table: the rows' requests and pages; the launch depends on its shape alone.
    """
    _, heads, head_dim = q.shape
    kv_heads, shape = keys.shape[2], table.shape
    overlap = chained and can_overlap(q.device)
    _decode_attention[(kv_heads, shape.num_programs)](
        out,
        q,
        keys,
        values,
        table.words,
        table.words[shape.items_start :],
        table.words[shape.pages_start :],
        workspace.partials,
        workspace.sums,
        workspace.finished,
        scale * math.log2(math.e),
        *out.stride()[:2],
        *q.stride()[:2],
        *keys.stride()[:3],
        HEAD_DIM=head_dim,
        PAGE_SIZE=shape.page_size,
        GROUP=heads // kv_heads,
        STEPS=TILE_STEPS,
        LANES=32 * _NUM_WARPS * _THREAD_DIMS // head_dim,
        CHAINED=overlap,
        **launch_options(_NUM_WARPS, overlap=overlap),
    )


@triton.jit
def _decode_attention(
    out,
    q,
    keys,
    values,
    starts,
    items,
    pages,
    partials,
    sums,
    finished,
    log2_scale,
    out_row_stride,
    out_head_stride,
    q_row_stride,
    q_head_stride,
    page_stride,
    slot_stride,
    head_stride,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """Every item of one program, for the query heads of one kv head. Grid: kv heads, programs."""
    if CHAINED:
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0)
    first_item = tl.load(starts + tl.program_id(1))
    end_item = tl.load(starts + tl.program_id(1) + 1)
    if CHAINED:
        tl.extra.cuda.gdc_wait()
    dims = tl.arange(0, HEAD_DIM)
    keys += kv_head * head_stride
    values += kv_head * head_stride
    first_head = kv_head * GROUP
    for item in range(first_item, end_item):
        words = items + item * ITEM_WORDS
        row = tl.load(words).to(tl.int64)
        first_page = tl.load(words + 1)
        num_tokens = tl.load(words + 2)
        slot = tl.load(words + 3)
        first_slot = tl.load(words + 4)
        num_slots = tl.load(words + 5)
        states = _attend(
            q + row * q_row_stride + first_head * q_head_stride + dims,
            keys,
            values,
            pages + first_page,
            num_tokens,
            log2_scale,
            q_head_stride,
            page_stride,
            slot_stride,
            HEAD_DIM,
            PAGE_SIZE,
            GROUP,
            STEPS,
            LANES,
        )
        out_head = out + row * out_row_stride + first_head * out_head_stride + dims
        if num_slots == 1:
            for member in tl.static_range(GROUP):
                _, total, weighted = _fold(*states[member])
                tl.store(out_head + member * out_head_stride, (weighted / total).to(out.dtype.element_ty))
        else:
            heads = tl.num_programs(0) * GROUP
            for member in tl.static_range(GROUP):
                highest, total, weighted = _fold(*states[member])
                place = slot.to(tl.int64) * heads + first_head + member
                tl.store(sums + place * 2, highest)
                tl.store(sums + place * 2 + 1, total)
                tl.store(partials + place * HEAD_DIM + dims, weighted)
            tl.debug_barrier()  # All threads have stored before one of them says so.
            counter = finished + first_slot * tl.num_programs(0) + kv_head
            if tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_slots - 1:
                tl.store(counter, 0)
                for member in tl.static_range(GROUP):
                    place = first_slot.to(tl.int64) * heads + first_head + member
                    total, weighted = _merge(
                        partials + place * HEAD_DIM, sums + place * 2, num_slots, heads, HEAD_DIM, LANES
                    )
                    tl.store(out_head + member * out_head_stride, (weighted / total).to(out.dtype.element_ty))


@triton.jit
def _attend(
    q,
    keys,
    values,
    pages,
    num_tokens,
    log2_scale,
    q_head_stride,
    page_stride,
    slot_stride,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    STEPS: tl.constexpr,
    LANES: tl.constexpr,
):
    """(highest score, sum of weights, weighted values) of each lane of an item's tokens, for each head of the group."""
    states = ()
    queries = ()
    for member in tl.static_range(GROUP):
        queries += (tl.load(q + member * q_head_stride).to(tl.float32) * log2_scale,)
        highest = tl.full((LANES,), LOWEST, dtype=tl.float32)
        states += ((highest, tl.zeros((LANES,), dtype=tl.float32), tl.zeros((LANES, HEAD_DIM), dtype=tl.float32)),)
    lanes = tl.arange(0, LANES)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    page = _load_pages(pages, lanes, num_tokens, PAGE_SIZE, STEPS, LANES)
    for start in range(0, num_tokens, STEPS * LANES):
        # One small tensor for each step, all of one layout, so that a thread has all steps of its lane.
        ks = ()
        vs = ()
        for step in tl.static_range(STEPS):
            token = start + step * LANES + lanes
            offset = (page[step].to(tl.int64) * page_stride + (token % PAGE_SIZE) * slot_stride)[:, None] + dims
            # Beyond the request lies anything, even NaN, which a weight of zero would not silence.
            ks += (tl.load(keys + offset, mask=(token < num_tokens)[:, None], other=0.0),)
            vs += (tl.load(values + offset, mask=(token < num_tokens)[:, None], other=0.0),)
        # The next tile's, to be there when this one is done.
        page = _load_pages(pages, start + STEPS * LANES + lanes, num_tokens, PAGE_SIZE, STEPS, LANES)
        new_states = ()
        for member in tl.static_range(GROUP):
            new_states += (_update(*states[member], queries[member], ks, vs, num_tokens - start, STEPS, LANES),)
        states = new_states
    return states


@triton.jit
def _load_pages(pages, token, num_tokens, PAGE_SIZE: tl.constexpr, STEPS: tl.constexpr, LANES: tl.constexpr):
    """The pages of each step's tokens, [lanes]."""
    found = ()
    for step in tl.static_range(STEPS):
        here = token + step * LANES
        found += (tl.load(pages + here // PAGE_SIZE, mask=here < num_tokens, other=0),)
    return found


@triton.jit
def _update(highest, total, weighted, query, ks, vs, num_tokens, STEPS: tl.constexpr, LANES: tl.constexpr):
    """The running softmax of each lane after another tile, of which so many tokens are the request's."""
    scores = ()
    new_highest = highest
    for step in tl.static_range(STEPS):
        products = tl.sum(ks[step].to(tl.float32) * query[None, :], axis=1)
        score = tl.where(step * LANES + tl.arange(0, LANES) < num_tokens, products, float("-inf"))
        new_highest = tl.maximum(new_highest, score)
        scores += (score,)
    faded = tl.exp2(highest - new_highest)
    total *= faded
    weighted *= faded[:, None]
    for step in tl.static_range(STEPS):
        weight = tl.exp2(scores[step] - new_highest)
        total += weight
        weighted += weight[:, None] * vs[step].to(tl.float32)
    return new_highest, total, weighted


@triton.jit
def _fold(highest, total, weighted):
    """One state of all lanes."""
    new_highest = tl.max(highest, axis=0)
    faded = tl.exp2(highest - new_highest)
    return new_highest, tl.sum(total * faded, axis=0), tl.sum(weighted * faded[:, None], axis=0)


@triton.jit
def _merge(partials, sums, num_slots, heads, HEAD_DIM: tl.constexpr, LANES: tl.constexpr):
    """(sum of weights, weighted values) of one head, over a row's slots."""
    highest = tl.full((LANES,), LOWEST, dtype=tl.float32)
    total = tl.zeros((LANES,), dtype=tl.float32)
    weighted = tl.zeros((LANES, HEAD_DIM), dtype=tl.float32)
    for start in range(0, num_slots, LANES):
        slot = start + tl.arange(0, LANES)
        is_slot = slot < num_slots
        place = slot.to(tl.int64) * heads
        their_highest = tl.load(sums + place * 2, mask=is_slot, other=LOWEST)
        their_total = tl.load(sums + place * 2 + 1, mask=is_slot, other=0.0)
        theirs = partials + place[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        their_weighted = tl.load(theirs, mask=is_slot[:, None], other=0.0)
        new_highest = tl.maximum(highest, their_highest)
        faded, their_faded = tl.exp2(highest - new_highest), tl.exp2(their_highest - new_highest)
        total = total * faded + their_total * their_faded
        weighted = weighted * faded[:, None] + their_weighted * their_faded[:, None]
        highest = new_highest
    _, total, weighted = _fold(highest, total, weighted)
    return total, weighted
