"""Rows that go to processes on the host and come back changed, within a stream and without the host's threads.

`punica_kernels.exchange_words` documents the tensors. A wait for the host ends once one of the processes has died, and
after a number of looks whatever the host does: then the step is marked as failed, and its later exchanges neither send
nor wait.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.exchange_words import DEAD as _DEAD
from punica_kernels.exchange_words import MAX_PROCESSES as _MAX_PROCESSES
from punica_kernels.exchange_words import ExchangeField, ExchangeTensors

KEY = tl.constexpr(ExchangeField.KEY)
NUM_ROWS = tl.constexpr(ExchangeField.NUM_ROWS)
GROUPS = tl.constexpr(ExchangeField.GROUPS)
PROCESSES = tl.constexpr(ExchangeField.PROCESSES)
ARRIVAL_SLOT = tl.constexpr(ExchangeField.ARRIVAL_SLOT)
ARRIVAL_NUMBER = tl.constexpr(ExchangeField.ARRIVAL_NUMBER)
MAX_LOOKS = tl.constexpr(ExchangeField.MAX_LOOKS)
MAX_LOOKS_FOR_ONE = tl.constexpr(ExchangeField.MAX_LOOKS_FOR_ONE)
NUM_LOOKS = tl.constexpr(ExchangeField.NUM_LOOKS)
FAILED = tl.constexpr(ExchangeField.FAILED)
MAX_PROCESSES = tl.constexpr(_MAX_PROCESSES)
DEAD = tl.constexpr(_DEAD)

#: Programs of a launch: enough to fill the link, few enough to leave the device to the kernels beside.
_MAX_PROGRAMS = 64
_BLOCK = 2048
#: One warp a program: its threads then see each word that others write at the same time, and take the same branch.
_NUM_WARPS = 1


def send(x: Tensor, tensors: ExchangeTensors, index: int, group: int, layer_group: int, num_prefill_rows: int) -> None:
    """Copies the step's last prefill rows of x to the host, unless their layer has arrived, and signals which it is."""
    num_programs = min(_MAX_PROGRAMS, num_prefill_rows)
    _send[(num_programs,)](
        x,
        tensors.host_x,
        tensors.host_sent,
        tensors.step,
        tensors.owner,
        tensors.counter,
        tensors.arrivals,
        index,
        group,
        layer_group,
        num_prefill_rows,
        x.stride(0),
        tensors.arrivals.stride(0),
        **_shape(x.shape[1]),
    )


def receive(delta: Tensor, tensors: ExchangeTensors, index: int, group: int, num_prefill_rows: int) -> None:
    """Replaces these rows of delta by the host's if they were sent. Waits for them, but never past the deadline."""
    num_programs = min(_MAX_PROGRAMS, num_prefill_rows)
    _receive[(num_programs,)](
        delta,
        tensors.host_delta,
        tensors.host_done,
        tensors.host_pids,
        tensors.host_failed,
        tensors.step,
        tensors.owner,
        index,
        group,
        num_prefill_rows,
        delta.stride(0),
        **_shape(delta.shape[1]),
    )


def _shape(width: int) -> dict[str, Any]:
    block = min(_BLOCK, triton.next_power_of_2(width))
    return {"WIDTH": width, "BLOCK": block, "num_warps": _NUM_WARPS}


@triton.jit(do_not_specialize=["index", "group", "layer_group", "num_prefill_rows"])
def _send(
    x,
    host_x,
    host_sent,
    step,
    owner,
    counter,
    arrivals,
    index,
    group,
    layer_group,
    num_prefill_rows,
    x_stride,
    arrival_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Programs may see the arrival of the layer at different times. The host computes only if none has seen it."""
    key = tl.load(step + KEY)
    is_exchanged = (tl.load(step + GROUPS) >> group) & 1
    if (key != 0) & (is_exchanged != 0):
        slot = tl.load(step + ARRIVAL_SLOT)
        arrived = tl.load(arrivals + slot * arrival_stride + layer_group, volatile=True)
        is_here = (arrived == tl.load(step + ARRIVAL_NUMBER)) | (tl.load(step + FAILED) != 0)
        if is_here == 0:
            num_rows = tl.load(step + NUM_ROWS)
            for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
                source = x + (num_prefill_rows - num_rows + row) * x_stride
                _copy_row(source, host_x + row * WIDTH, WIDTH, BLOCK, False)
        _signal_if_last(counter, owner, host_sent, index, key, is_here)


@triton.jit
def _signal_if_last(counter, owner, host_sent, index, key, is_here):
    """The last program tells the host whether to compute, in step `key`: only if all programs have sent their rows."""
    # All threads have written before one of them tells the other programs, and the last program tells the host.
    tl.debug_barrier()
    counted = tl.where(is_here, 1 << 16, 1)
    total = tl.atomic_add(counter, counted, sem="acq_rel", scope="sys") + counted
    if (total & 0xFFFF) + (total >> 16) == tl.num_programs(0):
        by_host = total == tl.num_programs(0)
        tl.store(counter, 0)
        tl.store(owner, tl.where(by_host, key, 0))
        tl.store(host_sent + index, tl.where(by_host, key, -key), cache_modifier=".wt")


@triton.jit(do_not_specialize=["index", "group", "num_prefill_rows"])
def _receive(
    delta,
    host_delta,
    host_done,
    host_pids,
    host_failed,
    step,
    owner,
    index,
    group,
    num_prefill_rows,
    delta_stride,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Every program with rows waits for all processes while all of them live, then copies its rows.

    The others don't look: the link has an adapter to carry.
    """
    key = tl.load(step + KEY)
    is_exchanged = (tl.load(step + GROUPS) >> group) & 1
    num_rows = tl.load(step + NUM_ROWS)
    if (key != 0) & (is_exchanged != 0) & (tl.load(owner) == key) & (tl.program_id(0) < num_rows):
        if _await_host(host_done, host_pids, step, key, index):
            for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
                source = host_delta + row * WIDTH
                target = delta + (num_prefill_rows - num_rows + row) * delta_stride
                _copy_row(source, target, WIDTH, BLOCK, True)
        else:
            tl.store(step + FAILED, 1)
            tl.store(host_failed, key, cache_modifier=".wt")


@triton.jit
def _await_host(host_done, host_pids, step, key, index):
    """Whether all processes have computed exchange `index` of step `key`, before any died or the looks were used up."""
    processes = tl.arange(0, MAX_PROCESSES)
    used = ((tl.load(step + PROCESSES) >> processes) & 1) != 0
    wanted = key.to(tl.int64) * 65536 + index + 1
    looks = tl.load(step + NUM_LOOKS)
    max_looks = tl.minimum(tl.load(step + MAX_LOOKS), looks + tl.load(step + MAX_LOOKS_FOR_ONE))
    least = wanted - 1
    num_lost = tl.full((), 0, tl.int32)
    while (least < wanted) & (looks < max_looks) & (num_lost == 0):
        done = tl.load(host_done + processes, mask=used, other=wanted, volatile=True)
        pids = tl.load(host_pids + processes, mask=used, other=1, volatile=True)
        least = tl.min(done, axis=0)
        num_lost = tl.sum(((pids == 0) | (pids >= DEAD)).to(tl.int32), axis=0)
        looks += 1
    if tl.program_id(0) == 0:
        tl.store(step + NUM_LOOKS, looks)
    return least >= wanted


@triton.jit
def _copy_row(source, target, WIDTH: tl.constexpr, BLOCK: tl.constexpr, VOLATILE: tl.constexpr):
    """Copies WIDTH numbers. VOLATILE: earlier contents of the source may be cached."""
    columns = tl.arange(0, BLOCK)
    for start in range(0, WIDTH, BLOCK):
        mask = start + columns < WIDTH
        tl.store(target + start + columns, tl.load(source + start + columns, mask=mask, volatile=VOLATILE), mask=mask)
