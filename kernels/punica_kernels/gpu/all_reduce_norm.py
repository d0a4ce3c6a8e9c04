"""Sum over ranks, residual and RMSNorm in one launch, in Triton: the exchange of a tensor-parallel layer.

A program puts its row into this rank's piece of the memory that all ranks map (`punica_kernels.peer_memory`), tells the
others, waits until they have done so, and reads their rows: one shot. Ranks meet row by row, never as a whole grid.

Why no rank reads a row too early: all threads of a program have stored theirs before the barrier, and one thread for
each other rank then adds to that rank's counter with *release* at system scope, which orders all that its program has
stored before the addition. The reader's counter is taken with *acquire* at system scope, which orders the loads behind
it, and the barrier in a scalar atomic passes that on to all threads of its program. Additions to one counter by several
ranks are one chain of atomics, so the last one that is seen stands for all.

Why no rank overwrites a row that another still reads: a row's exchanges take its two places in turns. A rank fills a
place again two exchanges later. It has then ended the exchange between, so all ranks had come to that one, whose
launch began only when their launch before had ended. That holds from launch to launch on the stream, not for one graph:
so graphs may be replayed, and steps with other numbers of rows may run between, which leave the turns of the rows that
they do not have alone. It needs launches that do not overlap: neither this one nor the one behind it starts early
(no PDL). A counter is zero again before its rank tells the others of the next exchange, after which alone they add to
this counter again.

Why no rank waits for ever: programs take rows in rising order, all programs of a launch fit on the device at once, and
what else runs there ends without them. So the lowest row that is missing anywhere is being worked on. A rank that does
not come at all ends the wait after `max_looks` with an assertion, which ends the process's use of the device.
"""

import triton
import triton.language as tl

from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.norm import normed, row_config
from punica_kernels.gpu.partial_sums import load_sum
from punica_kernels.peer_memory import PeerMemory

#: Polls of a counter, 0.5 µs or more each. They last minutes: the group's watch acts first, and ranks may compile.
MAX_LOOKS = 1 << 30
#: Compiler options: the assertion stays, and 16 warps get all registers, where the assembler would take half and spill.
OPTIONS = {"debug": True, "sanitize_overflow": False, "maxnreg": 128}


def all_reduce_add_rms_norm(end: BlockEnd, memory: PeerMemory, max_looks: int = MAX_LOOKS) -> None:
    """The end of a block whose x + delta is summed over all ranks.

    Each rank's x + delta is added in float32 and rounded to residual's dtype, as it travels; the sum over ranks is made
    in float32 in the order of ranks, so it has the same bits on all of them. All ranks must call it, with equal shapes.
    """
    num_rows, width = end.out.shape
    if num_rows == 0:
        return
    all_reduce_add_rms_norm_kernel[(min(num_rows, memory.max_programs),)](
        end.out,
        end.x,
        end.residual,
        end.delta,
        end.weight,
        end.added_weight,
        end.eps,
        memory.addresses,
        memory.turns,
        end.out.stride(0),
        end.x.stride(-2),
        end.x.stride(0),
        end.residual.stride(0),
        end.delta.stride(0) if end.delta is not None else 0,
        num_rows,
        max_looks,
        SPLIT_K=end.x.shape[0] if end.x.dim() == 3 else 1,
        RANK=memory.rank,
        SIZE=memory.size,
        LANES=triton.next_power_of_2(memory.size),
        MAX_ROWS=memory.max_rows,
        ROWS_OFFSET=memory.rows_offset,
        **row_config(width),
        **OPTIONS,
    )


@triton.jit(do_not_specialize=["num_rows", "max_looks"])
def all_reduce_add_rms_norm_kernel(
    out,
    x,
    residual,
    delta,
    weight,
    added_weight,
    eps,
    addresses,
    turns,
    out_stride,
    x_stride,
    split_stride,
    residual_stride,
    delta_stride,
    num_rows,
    max_looks,
    SPLIT_K: tl.constexpr,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    MAX_ROWS: tl.constexpr,
    ROWS_OFFSET: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program holds a row at a time, whole."""
    columns = tl.arange(0, BLOCK)
    mask = columns < WIDTH
    gain = tl.load(weight + columns, mask=mask, other=0.0)
    if added_weight is not None:
        gain_of_added = tl.load(added_weight + columns, mask=mask, other=0.0)
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        turn = tl.load(turns + row)
        place = turn * MAX_ROWS + row
        own = load_sum(x, delta, row, columns, mask, x_stride, split_stride, delta_stride, SPLIT_K)
        own = own.to(out.dtype.element_ty)
        tl.store(_row_of(addresses, RANK, place, own.dtype, ROWS_OFFSET, WIDTH) + columns, own, mask=mask)
        _tell_others(addresses, place, RANK, SIZE, LANES)

        # Loaded while the others' rows are on their way.
        residual_row = residual + row * residual_stride + columns
        total = tl.load(residual_row, mask=mask, other=0.0).to(tl.float32)
        _await_others(addresses, place, max_looks, RANK, SIZE)

        values = _sum_of_ranks(own, addresses, place, columns, mask, RANK, SIZE, ROWS_OFFSET, WIDTH)
        if added_weight is not None:
            values = normed(values, gain_of_added, eps, WIDTH).to(out.dtype.element_ty).to(tl.float32)
        summed = (total + values).to(residual.dtype.element_ty)
        tl.store(residual_row, summed, mask=mask)
        result = normed(summed.to(tl.float32), gain, eps, WIDTH).to(out.dtype.element_ty)
        tl.store(out + row * out_stride + columns, result, mask=mask)
        tl.store(turns + row, 1 - turn)


@triton.jit
def _sum_of_ranks(
    own,
    addresses,
    place,
    columns,
    mask,
    RANK: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS_OFFSET: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """float32 [BLOCK]: the rows of all ranks, in the order of ranks."""
    values = tl.zeros(columns.shape, tl.float32)
    for rank in tl.static_range(SIZE):
        if rank == RANK:
            values += own.to(tl.float32)
        else:
            theirs = _row_of(addresses, rank, place, own.dtype, ROWS_OFFSET, WIDTH) + columns
            # Volatile: what this place held two exchanges ago may be cached.
            values += tl.load(theirs, mask=mask, other=0.0, volatile=True).to(tl.float32)
    return values


@triton.jit
def _row_of(addresses, rank, place, dtype: tl.constexpr, ROWS_OFFSET: tl.constexpr, WIDTH: tl.constexpr):
    """Where a rank has the row of this place."""
    piece = tl.load(addresses + rank).to(tl.pointer_type(dtype))
    rows = tl.multiple_of(piece + ROWS_OFFSET // (dtype.primitive_bitwidth // 8), 16)
    return rows + place * WIDTH


@triton.jit
def _tell_others(addresses, place, RANK: tl.constexpr, SIZE: tl.constexpr, LANES: tl.constexpr):
    """Adds one to the counter of this place on each other rank, after all that this program has stored."""
    ranks = tl.arange(0, LANES)
    counters = tl.load(addresses + ranks, mask=ranks < SIZE, other=0).to(tl.pointer_type(tl.int32)) + place
    tl.debug_barrier()
    tl.atomic_add(counters, 1, mask=(ranks < SIZE) & (ranks != RANK), sem="release", scope="sys")


@triton.jit
def _await_others(addresses, place, max_looks, RANK: tl.constexpr, SIZE: tl.constexpr):
    """Waits until all other ranks have added to the counter of this place, and sets it back to zero.

    A scalar atomic is one thread's, and the others get its value: so all threads see the same and leave together.
    """
    counter = tl.load(addresses + RANK).to(tl.pointer_type(tl.int32)) + place
    looks = 1
    num_here = tl.atomic_cas(counter, SIZE - 1, 0, sem="acquire", scope="sys")
    while (num_here != SIZE - 1) & (looks < max_looks):
        num_here = tl.atomic_cas(counter, SIZE - 1, 0, sem="acquire", scope="sys")
        looks += 1
    tl.device_assert(num_here == SIZE - 1, "a rank has not come to an exchange of its group")
