"""SGMV on a GPU: `punica_kernels.sgmv` has the maths and the other shapes, `LoraTable` says which rows use which pages.

Rows have a stride of 1; pages hold 8 rank rows and are contiguous within a layer. The workspace v is flat, so that
groups that run in turns share one. For the group and table at hand it is [rows, slices, splits of h_in, ranks], and for
long prompts [splits, rows, slices, ranks], where the first split is the sum of all.

All raise ValueError, naming the argument, when the shapes do not fit.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from punica_kernels.checks import require_dense_rows, require_shape
from punica_kernels.gpu.pdl import pdl_options
from punica_kernels.gpu.prompt_shrink_config import prompt_splits
from punica_kernels.gpu.sgmv_config import ExpandConfig, ShrinkConfig, expand_config, num_splits, shrink_config
from punica_kernels.gpu.sgmv_embedding import sgmv_embedding_shrink
from punica_kernels.gpu.sgmv_expand import sgmv_expand
from punica_kernels.gpu.sgmv_prompt_expand import expand_prompts
from punica_kernels.gpu.sgmv_prompt_shrink import shrink_prompts
from punica_kernels.gpu.sgmv_shrink import sgmv_shrink
from punica_kernels.lora_table import PAGE_RANKS, LoraTable, LoraTableShape

#: Most projections stacked in one group: q, k and v.
_MAX_SLICES = 3


def workspace_numel(shape: LoraTableShape, num_slices: int) -> int:
    """Elements of the float32 workspace v. Its contents never matter before a shrink."""
    splits = prompt_splits(shape) if shape.holds_long_prompts else num_splits(shape, num_slices)
    return splits * shape.max_rows * num_slices * shape.max_ranks


def shrunk_numel(shape: LoraTableShape, num_slices: int) -> int:
    """Its first elements that an expand reads, which a shrink has written."""
    return num_splits(shape, num_slices) * shape.max_rows * num_slices * shape.max_ranks


def shrink(
    v: Tensor,
    x: Tensor,
    a_pages: Tensor,
    table: LoraTable,
    *,
    pdl: bool = False,
    config: ShrinkConfig | None = None,
) -> None:
    """v = x A, as one partial sum for each split of h_in, or their sum for long prompts, which take no ``config``.

    With `pdl` it starts while the kernel before it on the stream still runs. That kernel must not write the weights or
    the table; the shrink waits for it before it reads x or writes v.
    """
    _check_shrink(v, x, a_pages, table)
    if table.shape.holds_long_prompts:
        shrink_prompts(v, x, a_pages, table, pdl=pdl)
        return
    _, num_slices, _, h_in = a_pages.shape
    config = config or shrink_config(table.shape, h_in, num_slices)
    sgmv_shrink[(config.split_k, config.rank_block_programs, num_slices)](
        v,
        x,
        a_pages,
        table.words[table.shape.rank_blocks_start :],
        table.shape.max_rank_blocks,
        x.stride(0),
        a_pages.stride(0),
        H_IN=h_in,
        MAX_RANKS=table.shape.max_ranks,
        K_PER_SPLIT=config.k_per_split,
        BLOCK_K=config.block_k,
        WARP_SLICES=config.num_warps if config.block_k >= 16 * config.num_warps else 1,
        EVEN_K=h_in == config.split_k * config.k_per_split,
        num_warps=config.num_warps,
        **pdl_options(x.device, wait=pdl),
    )


def shrink_embedding(v: Tensor, token_ids: Tensor, a_pages: Tensor, table: LoraTable, *, first_token: int = 0) -> None:
    """v = A's column of each row's token, for a group that embeds tokens: a_pages [pages, 1, 8, tokens].

    A has the tokens from `first_token` on; others, which another rank has, become zeros.
    """
    if a_pages.dim() != 4 or a_pages.shape[1:3] != (1, PAGE_RANKS):
        raise ValueError(f"a_pages must be [num_pages, 1, {PAGE_RANKS}, tokens], got {list(a_pages.shape)}")
    require_shape("token_ids", token_ids, table.shape.max_rows)
    require_dense_rows(token_ids=token_ids)
    _check_pages("a_pages", a_pages)
    check_shrunk(v, 1, table)
    sgmv_embedding_shrink[(table.shape.max_rank_blocks,)](
        v,
        token_ids,
        a_pages,
        table.words[table.shape.rank_blocks_start :],
        first_token,
        a_pages.shape[3],
        a_pages.stride(0),
        MAX_RANKS=table.shape.max_ranks,
        SPLIT_K=num_splits(table.shape, 1),
        TILE_ROWS=table.shape.tile_rows,
        num_warps=4,
    )


def expand(
    y: Tensor,
    v: Tensor,
    b_pages: Tensor,
    out_offsets: Sequence[int],
    table: LoraTable,
    *,
    accumulate: bool,
    pdl: bool = False,
    config: ExpandConfig | None = None,
) -> None:
    """y += v B; without `accumulate` y = v B for all rows of the table, with zeros for rows without LoRA.

    It must follow its shrink on the stream, and waits for it before it writes. `pdl` lets the kernel after it
    start early, such as a shrink with `pdl`.
    """
    _check_expand(y, v, b_pages, out_offsets, table)
    num_slices = len(out_offsets) - 1
    widths = [end - start for start, end in pairwise(out_offsets)]
    config = config or expand_config(table.shape, num_slices, max(widths), b_pages.dtype)
    if table.shape.holds_long_prompts:
        expand_prompts(y, v, b_pages, out_offsets, table, config, accumulate=accumulate, pdl=pdl)
        return
    ends = [*out_offsets[1:], out_offsets[-1], out_offsets[-1]]
    sgmv_expand[(sum(-(-width // config.block_n) for width in widths), config.tile_programs)](
        y,
        v,
        b_pages,
        table.words,
        table.shape.max_tiles,
        y.stride(0),
        b_pages.stride(0),
        END_0=ends[0],
        END_1=ends[1],
        END_2=ends[2],
        TILE_WORDS=table.shape.tile_words,
        TILE_ROWS=table.shape.tile_rows,
        SLICES=num_slices,
        MAX_RANKS=table.shape.max_ranks,
        SPLIT_K=config.split_k,
        BLOCK_N=config.block_n,
        TILE_N=config.tile_n,
        LOG2_BLOCKS=config.log2_blocks,
        EVEN_N=all(width % config.block_n == 0 for width in widths),
        ACCUMULATE=accumulate,
        IN_TURNS=config.tile_programs < table.shape.max_tiles,
        maxnreg=config.max_registers,
        num_warps=config.num_warps,
        **pdl_options(y.device, wait=True, trigger=pdl),
    )


def add_lora(
    y: Tensor,
    x: Tensor,
    a_pages: Tensor,
    b_pages: Tensor,
    out_offsets: Sequence[int],
    table: LoraTable,
    v: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """y += x A B in place: shrink, then expand."""
    shrink(v, x, a_pages, table, pdl=pdl)
    expand(y, v, b_pages, out_offsets, table, accumulate=True, pdl=pdl)


def _check_shrink(v: Tensor, x: Tensor, a_pages: Tensor, table: LoraTable) -> None:
    if a_pages.dim() != 4 or a_pages.shape[2] != PAGE_RANKS:
        raise ValueError(f"a_pages must be [num_pages, slices, {PAGE_RANKS}, h_in], got {list(a_pages.shape)}")
    require_shape("x", x, table.shape.max_rows, a_pages.shape[3])
    require_dense_rows(x=x)
    _check_pages("a_pages", a_pages)
    _check_v(v, workspace_numel(table.shape, a_pages.shape[1]))


def _check_expand(y: Tensor, v: Tensor, b_pages: Tensor, out_offsets: Sequence[int], table: LoraTable) -> None:
    check_b_pages(b_pages)
    h_out = b_pages.shape[2]
    require_shape("y", y, table.shape.max_rows, h_out)
    require_dense_rows(y=y)
    if not 2 <= len(out_offsets) <= _MAX_SLICES + 1 or out_offsets[0] != 0 or out_offsets[-1] != h_out:
        raise ValueError(
            f"out_offsets must be 2 to {_MAX_SLICES + 1} from 0 to h_out = {h_out}, got {list(out_offsets)}"
        )
    check_shrunk(v, len(out_offsets) - 1, table)


def check_b_pages(b_pages: Tensor) -> None:
    """Raises ValueError unless they are [num_pages, 8, h_out] without gaps in a page."""
    if b_pages.dim() != 3 or b_pages.shape[1] != PAGE_RANKS:
        raise ValueError(f"b_pages must be [num_pages, {PAGE_RANKS}, h_out], got {list(b_pages.shape)}")
    _check_pages("b_pages", b_pages)


def _check_pages(name: str, pages: Tensor) -> None:
    if not pages[:1].is_contiguous():
        raise ValueError(f"{name} must have pages without gaps, got strides {pages.stride()}")


def check_shrunk(v: Tensor, num_slices: int, table: LoraTable) -> None:
    """Raises ValueError unless it holds what the table's shrink of a group of so many slices leaves for an expand."""
    _check_v(v, shrunk_numel(table.shape, num_slices))


def _check_v(v: Tensor, needed: int) -> None:
    if v.dtype != torch.float32 or v.dim() != 1 or v.shape[0] < needed:
        raise ValueError(f"v must be float32 [>= {needed}], got {v.dtype} {list(v.shape)}")
