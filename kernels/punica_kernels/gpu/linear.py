"""The dense projection of few rows in Triton. The vendor's library computes all other products.

The library's kernels for few rows take whole multiprocessors for themselves: all registers, most of the shared memory.
This kernel is as fast and leaves room for the LoRA of the same rows beside it. It can also start while the kernel
before it ends, and prefetch its first weights meanwhile (measured on an H200, docs/performance.md).
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.pdl import await_predecessors, pdl_options, start_dependents

#: With more rows the library's kernels win.
MAX_ROWS = 64
_BLOCK_OUT = 64
_BLOCK_IN = 128
_NUM_WARPS = 4
#: Elements of 2 bytes in a cache line.
_LINE = tl.constexpr(64)
#: Shared memory that Triton itself needs.
_SPARE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """Launch configuration of a projection."""

    #: Rows of a tile, at least those of x.
    block_rows: int
    #: Splits of the inputs, each with a partial sum.
    split_k: int
    #: Blocks of weights in flight.
    stages: int


def linear_config(x: Tensor, weight: Tensor, *, may_split: bool) -> LinearConfig | None:
    """None if the library is faster, or the shape does not fit this kernel."""
    if x.dtype not in (torch.bfloat16, torch.float16) or not 0 < x.shape[0] <= MAX_ROWS:
        return None
    return _config(x.shape[0], *weight.shape, may_split, x.device)


@cache
def _config(num_rows: int, num_out: int, num_in: int, may_split: bool, device: torch.device) -> LinearConfig | None:
    block_rows = max(16, triton.next_power_of_2(num_rows))
    device_index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(device_index)
    num_blocks, num_sms = num_out // _BLOCK_OUT, properties["multiprocessor_count"]
    # Each split has whole blocks of the inputs.
    split_k = math.gcd(wanted_splits(num_blocks, num_sms), num_in // _BLOCK_IN) if may_split else 1
    stage_bytes = (_BLOCK_OUT + block_rows) * _BLOCK_IN * 2
    most_stages = (properties["max_shared_mem"] - _SPARE_BYTES) // stage_bytes
    stages = min(wanted_stages(num_blocks, split_k, num_sms), most_stages)
    if num_out % _BLOCK_OUT or num_in % _BLOCK_IN or stages < 2:
        return None
    return LinearConfig(block_rows, split_k, stages)


def wanted_splits(num_blocks: int, num_sms: int) -> int:
    """1, 2 or 4 splits for so many blocks of outputs: at most a program per multiprocessor, as far as that goes.

    Blocks that would leave more than a quarter of the multiprocessors idle are split although some of these then have
    two programs.
    """
    if 4 * num_blocks <= num_sms:
        return 4
    return 2 if 4 * num_blocks < 3 * num_sms else 1


def wanted_stages(num_blocks: int, split_k: int, num_sms: int) -> int:
    """The blocks of weights in flight for each program, fewer where two share a multiprocessor's shared memory."""
    return 4 if split_k > 1 and num_blocks * split_k > num_sms else 5


def linear(x: Tensor, weight: Tensor, config: LinearConfig, *, pdl: bool) -> Tensor:
    """x @ weight.T: [num_rows, out], or float32 [split_k, num_rows, out] if the config splits the inputs."""
    num_rows, (num_out, num_in), split_k = x.shape[0], weight.shape, config.split_k
    y = x.new_empty(num_rows, num_out) if split_k == 1 else x.new_empty(split_k, num_rows, num_out, dtype=torch.float32)
    _linear[(num_out // _BLOCK_OUT, split_k)](
        y,
        x,
        weight,
        num_rows,
        num_out,
        num_in,
        x.stride(0),
        BLOCK_ROWS=config.block_rows,
        BLOCK_OUT=_BLOCK_OUT,
        BLOCK_IN=_BLOCK_IN,
        SPLIT_K=split_k,
        STAGES=config.stages,
        num_warps=_NUM_WARPS,
        **pdl_options(x.device, wait=pdl),
    )
    return y


@triton.jit
def _linear(
    y,
    x,
    weight,
    num_rows,
    num_out,
    num_in,
    x_stride,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    SPLIT_K: tl.constexpr,
    STAGES: tl.constexpr,
    PDL_TRIGGER: tl.constexpr,
    PDL_WAIT: tl.constexpr,
):
    """y[split, row, out] over a block of outputs and a split of the inputs. Grid: blocks of outputs, splits."""
    rows = tl.arange(0, BLOCK_ROWS)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    k_per_split = num_in // SPLIT_K
    first_in = tl.program_id(1) * k_per_split
    weight += outs[:, None].to(tl.int64) * num_in + first_in
    if PDL_WAIT:
        # No kernel writes weights, so those of the first block can be prefetched before the wait.
        _prefetch(weight + (tl.arange(0, BLOCK_IN // _LINE) * _LINE)[None, :])
    await_predecessors(PDL_WAIT)
    start_dependents(PDL_TRIGGER)
    ins = tl.arange(0, BLOCK_IN)[None, :]
    used = (rows < num_rows)[:, None]
    x += rows[:, None] * x_stride + first_in + ins
    weight += ins
    # The weights take the side of the tensor-core product that is 64 wide, so x is not padded to that.
    acc = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=tl.float32)
    for start in tl.range(0, k_per_split, BLOCK_IN, num_stages=STAGES):
        w = tl.load(weight + start)
        acc = tl.dot(w, tl.trans(tl.load(x + start, mask=used, other=0.0)), acc)
    y += (tl.program_id(1) * num_rows + rows[:, None]) * num_out + outs[None, :]
    tl.store(y, tl.trans(acc).to(y.dtype.element_ty), mask=used)


@triton.jit
def _prefetch(pointers):
    """Prefetches cache lines into L2 without waiting."""
    operation: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(operation, "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1)
