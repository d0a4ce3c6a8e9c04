"""The dense projection of few rows in Triton. Products of more rows, and of other dtypes, are the vendor's library's.

The library's kernels for few rows take whole multiprocessors for themselves: all registers, most of the shared memory.
This one is as fast and leaves room, so that the LoRA of the same rows runs beside it, and it can start while the kernel
before it ends, and have its first weights on their way (measured on an H200, docs/performance.md).
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from punica_kernels.gpu.launch import can_overlap, launch_options

#: Beyond so many rows the library's kernels win.
MAX_ROWS = 64
_BLOCK_OUT = 64
_BLOCK_IN = 128
_NUM_WARPS = 4
#: Elements, of 2 bytes, of a cache line.
_LINE = tl.constexpr(64)
#: What Triton wants of the shared memory for itself.
_SPARE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """How a projection is cut."""

    #: Rows of a tile, at least those of x.
    block_rows: int
    #: Divisions of the inputs, each with a sum of its own.
    parts: int
    #: Blocks of weights under way at a time.
    stages: int


def linear_config(x: Tensor, weight: Tensor, *, in_parts: bool) -> LinearConfig | None:
    """None where the library's product is the better one, or the shape does not fit this kernel."""
    if x.dtype not in (torch.bfloat16, torch.float16) or not 0 < x.shape[0] <= MAX_ROWS:
        return None
    return _config(x.shape[0], *weight.shape, in_parts, x.device)


@cache
def _config(num_rows: int, num_out: int, num_in: int, in_parts: bool, device: torch.device) -> LinearConfig | None:
    block_rows = max(16, triton.next_power_of_2(num_rows))
    device_index = torch.cuda.current_device() if device.index is None else device.index
    properties = triton.runtime.driver.active.utils.get_device_properties(device_index)
    num_blocks, num_sms = num_out // _BLOCK_OUT, properties["multiprocessor_count"]
    parts = 2 if in_parts and num_blocks < num_sms else 1
    # Narrow projections have one program on a multiprocessor, which must ask for more at a time.
    wanted = 5 if parts > 1 else 4 if num_blocks <= 2 * num_sms else 3
    stage_bytes = (_BLOCK_OUT + block_rows) * _BLOCK_IN * 2
    stages = min(wanted, (properties["max_shared_mem"] - _SPARE_BYTES) // stage_bytes)
    if num_out % _BLOCK_OUT or num_in % (_BLOCK_IN * parts) or stages < 2:
        return None
    return LinearConfig(block_rows, parts, stages)


def linear(x: Tensor, weight: Tensor, config: LinearConfig, *, chained: bool) -> Tensor:
    """x @ weight.T as the config has it: [num_rows, out], or float32 [parts, num_rows, out]."""
    num_rows, (num_out, num_in), parts = x.shape[0], weight.shape, config.parts
    y = x.new_empty(num_rows, num_out) if parts == 1 else x.new_empty(parts, num_rows, num_out, dtype=torch.float32)
    overlap = can_overlap(x.device)
    _linear[(num_out // _BLOCK_OUT, parts)](
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
        PARTS=parts,
        STAGES=config.stages,
        PDL=overlap,
        CHAINED=overlap and chained,
        **launch_options(_NUM_WARPS, overlap=overlap and chained),
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
    PARTS: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """y[part, row, out] over a block of outputs and a part of the inputs. Grid: blocks of outputs, parts."""
    rows = tl.arange(0, BLOCK_ROWS)
    outs = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    part_in = num_in // PARTS
    first_in = tl.program_id(1) * part_in
    weight += outs[:, None].to(tl.int64) * num_in + first_in
    if CHAINED:
        # No kernel writes weights: those of the first block are on their way while the kernel before still runs.
        _prefetch(weight + (tl.arange(0, BLOCK_IN // _LINE) * _LINE)[None, :])
        tl.extra.cuda.gdc_wait()
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    ins = tl.arange(0, BLOCK_IN)[None, :]
    used = (rows < num_rows)[:, None]
    x += rows[:, None] * x_stride + first_in + ins
    weight += ins
    # The weights stand on the side that tensor cores take 64 rows of: no row of x is padded to that.
    total = tl.zeros((BLOCK_OUT, BLOCK_ROWS), dtype=tl.float32)
    for start in tl.range(0, part_in, BLOCK_IN, num_stages=STAGES):
        w = tl.load(weight + start)
        total = tl.dot(w, tl.trans(tl.load(x + start, mask=used, other=0.0)), total)
    y += (tl.program_id(1) * num_rows + rows[:, None]) * num_out + outs[None, :]
    tl.store(y, tl.trans(total).to(y.dtype.element_ty), mask=used)


@triton.jit
def _prefetch(pointers):
    """Asks for cache lines and waits for none."""
    operation: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(operation, "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1)
