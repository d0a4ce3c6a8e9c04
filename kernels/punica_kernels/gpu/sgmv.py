"""Launches of the SGMV kernels. `punica_kernels.sgmv` checks the arguments and has the shapes.

The workspace v is flat: [rows, slices, splits of h_in, ranks] of the group and table at hand, so that groups that take
turns share one.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from punica_kernels.gpu.launch import can_overlap, launch_options
from punica_kernels.gpu.sgmv_config import ExpandConfig, ShrinkConfig, expand_config, num_splits, shrink_config
from punica_kernels.gpu.sgmv_expand import sgmv_expand
from punica_kernels.gpu.sgmv_shrink import sgmv_shrink
from punica_kernels.lora_table import LoraTable, LoraTableShape


def workspace_numel(shape: LoraTableShape, num_slices: int) -> int:
    """Elements of the float32 workspace v. Its contents never matter before a shrink."""
    return num_splits(shape, num_slices) * shape.max_rows * num_slices * shape.max_ranks


def shrink(
    v: Tensor,
    x: Tensor,
    a_pages: Tensor,
    table: LoraTable,
    *,
    chained: bool = False,
    config: ShrinkConfig | None = None,
) -> None:
    """v = x A, as one partial sum for each split of h_in.

    `chained` lets it start while the kernel before it on the stream still runs, which then must not write the weights
    or the table; it waits before it reads x or writes v.
    """
    _, num_slices, _, h_in = a_pages.shape
    config = config or shrink_config(table.shape, h_in, num_slices)
    overlap = can_overlap(x.device)
    sgmv_shrink[(config.splits, config.item_programs, num_slices)](
        v,
        x,
        a_pages,
        table.words[table.shape.items_start :],
        table.shape.max_items,
        x.stride(0),
        a_pages.stride(0),
        H_IN=h_in,
        MAX_RANKS=table.shape.max_ranks,
        SPLIT_K=config.split_k,
        BLOCK_K=config.block_k,
        PARTS=config.num_warps if config.block_k >= 16 * config.num_warps else 1,
        EVEN_K=h_in == config.splits * config.split_k,
        PDL=overlap,
        CHAINED=overlap and chained,
        **launch_options(config.num_warps, overlap=overlap and chained),
    )


def expand(
    y: Tensor,
    v: Tensor,
    b_pages: Tensor,
    out_offsets: Sequence[int],
    table: LoraTable,
    *,
    accumulate: bool,
    chained: bool = False,
    config: ExpandConfig | None = None,
) -> None:
    """y += v B, or, without `accumulate`, y = v B for all of the table's rows, zeros where a row has no LoRA.

    Must follow its shrink on the stream. `chained` lets the kernel after it start early, as a chained shrink may.
    """
    num_slices = len(out_offsets) - 1
    widths = [end - start for start, end in pairwise(out_offsets)]
    config = config or expand_config(table.shape, num_slices, max(widths))
    overlap = can_overlap(y.device)
    ends = [*out_offsets[1:], out_offsets[-1], out_offsets[-1]]
    sgmv_expand[(sum(-(-width // config.block_n) for width in widths), table.shape.max_tiles)](
        y,
        v,
        b_pages,
        table.words,
        y.stride(0),
        b_pages.stride(0),
        END_0=ends[0],
        END_1=ends[1],
        END_2=ends[2],
        TILE_WORDS=table.shape.tile_words,
        SLICES=num_slices,
        MAX_RANKS=table.shape.max_ranks,
        SPLITS=config.splits,
        BLOCK_N=config.block_n,
        TILE_N=config.tile_n,
        EVEN_N=all(width % config.block_n == 0 for width in widths),
        ACCUMULATE=accumulate,
        PDL=overlap,
        CHAINED=overlap and chained,
        maxnreg=config.max_registers,
        **launch_options(config.num_warps, overlap=overlap),
    )
