"""The SGMV kernels in Triton: on a GPU, or in Triton's interpreter on small shapes where there is none."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lora_cases import DEVICE, TableCase, make_case
from punica_kernels.activation import silu_and_mul
from punica_kernels.gpu.sgmv import add_lora, expand, shrink, shrink_embedding, shrunk_numel, workspace_numel
from punica_kernels.gpu.sgmv_config import expand_config, shrink_config
from punica_kernels.lora_table import PROMPT_TILE_ROWS, LoraTableShape

#: Relative Frobenius error: what rounding the result costs. The interpreter multiplies bfloat16 wrongly.
TOLERANCES = {torch.float32: 1e-6, torch.float16: 4e-4}
GPU_TOLERANCES = {**TOLERANCES, torch.bfloat16: 3e-3}
RelativeError = Callable[[Tensor, Tensor], float]


@pytest.mark.parametrize(("dtype", "slice_widths"), [(torch.float32, (24,)), (torch.float16, (24, 8, 8))])
def test_rows_prefills_and_rows_without_lora_in_one_call(
    relative_error: RelativeError, dtype: torch.dtype, slice_widths: tuple[int, ...]
) -> None:
    case = make_case([1, 17, 0, 2, 1], [12, 24, 8, 0, 8], dtype=dtype, slice_widths=slice_widths)
    expected = case.expected_delta()
    assert relative_error(case.delta(), expected) < TOLERANCES[dtype]
    assert relative_error(case.added_again(), case.y.double() + expected) < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("segment_rows", "ranks", "dtype", "slice_widths"),
    [
        ([1000, 17, 0, 1, 2], [12, 24, 8, 0, 8], torch.float16, (24, 8, 8)),
        ([70, 1, 1100, 1, 1], [0, 8, 40, 16, 136], torch.float32, (24,)),
        pytest.param([1000, 17, 0, 1, 2], [12, 24, 8, 0, 8], torch.float32, (24,), marks=pytest.mark.slow),
        pytest.param([70, 1, 1100, 1, 1], [0, 8, 40, 16, 136], torch.float16, (24, 8, 8), marks=pytest.mark.slow),
        # A row has several blocks of the wide slice, and more turns than usual.
        pytest.param([500, *[1] * 11], [8, *[16, 0, 40] * 3, 8, 8], torch.float32, (1100, 40), marks=pytest.mark.slow),
    ],
)
def test_long_prompts_beside_other_rows(
    relative_error: RelativeError,
    segment_rows: list[int],
    ranks: list[int],
    dtype: torch.dtype,
    slice_widths: tuple[int, ...],
) -> None:
    """Large tiles, full or not: v of each is written once, as the same bits."""
    case = make_case(segment_rows, ranks, dtype=dtype, h_in=300, slice_widths=slice_widths)
    assert case.table.shape.holds_long_prompts
    words, expected = case.table.words.clone(), case.expected_delta()
    delta = case.delta()
    assert relative_error(delta, expected) < TOLERANCES[dtype]
    assert relative_error(case.added_again(), case.y.double() + expected) < TOLERANCES[dtype]
    assert torch.equal(case.table.words, words)
    case.v.fill_(torch.nan)
    assert torch.equal(case.delta(), delta)


def test_very_long_prompts_have_tiles_enough_without_splits(relative_error: RelativeError) -> None:
    case = make_case([96 * PROMPT_TILE_ROWS, 1], [16, 8])
    assert workspace_numel(case.table.shape, 1) == shrunk_numel(case.table.shape, 1)
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("rank", [1, 8, 9, 16, 33])
def test_ranks(relative_error: RelativeError, rank: int) -> None:
    case = make_case([1, 2], [rank, rank])
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_rows_of_every_number_of_rank_blocks(relative_error: RelativeError) -> None:
    """For outputs this wide, a row multiplies 1 to 4 rank blocks at once, and 5 to 8 in two turns."""
    ranks = list(range(16, 129, 16))
    case = make_case([1] * len(ranks), ranks, slice_widths=(128, 72))
    assert expand_config(case.table.shape, 2, 128, torch.float32).log2_blocks == 2
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_the_highest_ranks_beside_low_ones(relative_error: RelativeError) -> None:
    case = make_case([1, 3, 1], [256, 8, 136], slice_widths=(24, 8))
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_room_for_the_highest_ranks_changes_no_launch() -> None:
    """But for the row's stride in v, which holds as many ranks as the table."""
    for rows, segments in ((1, 1), (32, 32), (543, 34), (2079, 34)):
        usual, wide = (LoraTableShape(rows, segments, pages) for pages in (16, 32))
        assert shrink_config(usual, 4096, 3) == shrink_config(wide, 4096, 3)
        assert expand_config(usual, 3, 4096, torch.bfloat16) == expand_config(wide, 3, 4096, torch.bfloat16)


@pytest.mark.parametrize(
    ("h_in", "slice_widths", "ranks"),
    [(1, (1,), [40, 24]), (3, (5, 7), [12, 8]), (300, (1, 130, 3), [12, 8]), (64, (64, 64), [16, 8])],
)
def test_odd_widths(relative_error: RelativeError, h_in: int, slice_widths: tuple[int, ...], ranks: list[int]) -> None:
    case = make_case([1, 3], ranks, h_in=h_in, slice_widths=slice_widths)
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


def test_more_rank_blocks_than_programs(relative_error: RelativeError) -> None:
    case = make_case([1, 1], [128, 128])
    shape = case.table.shape
    assert 2 * shape.max_tile_rank_blocks > shrink_config(shape, case.x.shape[1], 1).rank_block_programs
    assert relative_error(case.delta(), case.expected_delta()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("accumulate", "tile_programs"),
    [(True, 1), (False, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((False, 1), (True, 2)))],
)
@pytest.mark.parametrize("segment_rows", [[1] * 9, [37, 1, 20, 1, 1], [9]])
def test_programs_take_tiles_in_turns(
    relative_error: RelativeError, segment_rows: list[int], accumulate: bool, tile_programs: int
) -> None:
    """Tiles of one row and of several, without LoRA, that share columns, and entries without rows behind them."""
    ranks = [(8, 0, 40)[number % 3] for number in range(len(segment_rows))]
    case = make_case(segment_rows, ranks)
    config = replace(expand_config(case.table.shape, 1, 24, torch.float32), tile_programs=tile_programs)
    assert tile_programs < case.table.shape.max_tiles
    y, expected = case.y.clone(), case.expected_delta()
    shrink(case.v, case.x, case.a_pages, case.table)
    expand(y, case.v, case.b_pages, case.out_offsets, case.table, accumulate=accumulate, config=config)
    assert relative_error(y, expected + case.y.double() * accumulate) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("rows", "rank_pages", "dtype", "programs"),
    [
        *((256, 2, torch.float16, 96), (128, 2, torch.bfloat16, 96), (96, 2, torch.float16, 96)),
        *((256, 2, torch.float32, 256), (256, 3, torch.float16, 256)),
    ],
)
def test_programs_take_turns_for_many_decodes_of_low_ranks_in_16_bits(
    rows: int, rank_pages: int, dtype: torch.dtype, programs: int
) -> None:
    shape = LoraTableShape(rows, rows, rank_pages)
    assert expand_config(shape, 2, 11008, dtype).tile_programs == programs


@pytest.mark.parametrize(("rows", "programs"), [(479, 63), (2079, 38)])
def test_prompts_have_a_program_for_each_tile_and_some_for_single_rows(rows: int, programs: int) -> None:
    shape = LoraTableShape(rows, 33, 2)
    assert expand_config(shape, 2, 11008, torch.bfloat16).tile_programs == programs


def test_rows_without_lora_keep_their_bits_or_become_zero() -> None:
    case = make_case([1, 2, 20], [8, 0, 16])
    case.x[1:3] = torch.nan
    case.x[23:] = torch.nan
    without = [1, 2, 23, 24, 25]
    assert torch.equal(case.added()[without], case.y[without])
    assert not case.delta()[without].any()


def test_no_row_with_lora() -> None:
    case = make_case([4, 3], [0, 0])
    assert torch.equal(case.added(), case.y)
    assert not case.delta().any()


def test_strided_rows(relative_error: RelativeError) -> None:
    case = make_case([2, 1], [16, 8])
    expected = case.expected_delta()
    wide = torch.full((6, 100), 7.0, device=DEVICE)
    case.x = torch.cat([case.x, case.x], dim=1)[:, :40]
    shrink(case.v, case.x, case.a_pages, case.table)
    expand(wide[:, 10:34], case.v, case.b_pages, case.out_offsets, case.table, accumulate=False)
    assert relative_error(wide[:, 10:34], expected) < TOLERANCES[torch.float32]
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 34:] == 7).all()


@pytest.mark.parametrize("prompt_rows", [17, 1000])
def test_what_ranks_shrink_of_their_inputs_adds_up_in_v(relative_error: RelativeError, prompt_rows: int) -> None:
    case = make_case([1, prompt_rows, 0, 2, 1], [12, 24, 8, 0, 8], slice_widths=(24, 8, 8))
    parts = [torch.full_like(case.v, torch.nan) for _ in range(2)]
    for v, inputs in zip(parts, (slice(0, 24), slice(24, 40)), strict=True):
        shrink(v, case.x[:, inputs], case.a_pages[..., inputs].contiguous(), case.table)
    delta = torch.full_like(case.y, torch.nan)
    v = torch.stack(parts).sum(0)[: shrunk_numel(case.table.shape, 3)]
    expand(delta, v, case.b_pages, case.out_offsets, case.table, accumulate=False)
    assert relative_error(delta, case.expected_delta()) < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("rank", "v_scale", "b_scale", "prompt_rows"),
    [
        *((16, 3e4, 2**-8, 5), (40, 3e4, 2**-8, 5), (16, 1.0, 1.0, 5), (40, 1e-5, 2**10, 5)),
        *((16, 3e4, 2**-8, 1000), (40, 1e-5, 2**10, 1000)),
        pytest.param(40, 3e4, 2**-8, 1000, marks=pytest.mark.slow),
        pytest.param(16, 1.0, 1.0, 1000, marks=pytest.mark.slow),
    ],
)
def test_what_lies_between_may_leave_float16(
    relative_error: RelativeError, rank: int, v_scale: float, b_scale: float, prompt_rows: int
) -> None:
    """v of some rows is beyond float16, or below it: alone or in a tile beside others, each row has its own answer."""
    case = make_case([1, prompt_rows], [rank, rank], dtype=torch.float16)
    case.a_pages *= v_scale**0.5
    case.x *= v_scale**0.5
    case.b_pages *= b_scale
    case.x[2] *= 0.1
    expected, delta = case.expected_delta(), case.delta()
    for row in range(6):
        assert relative_error(delta[row], expected[row]) < 2 * TOLERANCES[torch.float16]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x", torch.zeros(8, 40)),
        ("x", torch.zeros(40, 9).T),
        ("y", torch.zeros(9, 23)),
        ("a_pages", torch.zeros(9, 1, 4, 40)),
        ("a_pages", torch.zeros(9, 1, 40, 8).transpose(2, 3)),
        ("b_pages", torch.zeros(9, 4, 24)),
        ("b_pages", torch.zeros(9, 24, 8).transpose(1, 2)),
        ("out_offsets", (0, 23)),
        ("out_offsets", (0, 6, 12, 18, 24)),
        ("v", torch.zeros(9)),
        ("v", torch.zeros(1 << 20, dtype=torch.float16)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: object) -> None:
    case = make_case([5, 1], [16, 3])
    setattr(case, argument, value)
    with pytest.raises(ValueError, match=f"^{argument} must"):
        add_lora(case.y, case.x, case.a_pages, case.b_pages, case.out_offsets, case.table, case.v)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize("segment_rows", [[1] * 4, [1] * 32, [512, 1, 1], [1, 2000]])
def test_model_widths_with_the_highest_ranks(
    relative_error: RelativeError, segment_rows: list[int], dtype: torch.dtype
) -> None:
    ranks = [(256, 16, 0, 200)[segment % 4] for segment in range(len(segment_rows))]
    case = make_case(segment_rows, ranks, dtype=dtype, h_in=4096, slice_widths=(4096, 1024, 1024))
    assert relative_error(case.delta(), case.expected_delta()) < GPU_TOLERANCES[dtype]


def mixed_ranks(num_adapters: int) -> list[int]:
    return [(16, 8, 64, 0, 128, 5, 33, 12)[adapter % 8] for adapter in range(num_adapters)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(
    "segment_rows", [[1], [1] * 32, [8] * 8, [1] * 48 + [16], [512] + [1] * 31, [300, 1000, 1, 700]]
)
def test_model_widths(relative_error: RelativeError, segment_rows: list[int], dtype: torch.dtype) -> None:
    ranks = mixed_ranks(len(segment_rows))
    case = make_case(segment_rows, ranks, dtype=dtype, h_in=4096, slice_widths=(4096, 1024, 1024))
    expected = case.expected_delta()
    assert relative_error(case.delta(), expected) < GPU_TOLERANCES[dtype]
    assert relative_error(case.added(), case.y.double() + expected) < GPU_TOLERANCES[dtype]
    assert torch.equal(case.delta(), case.delta())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_adapters", [1, 16, None])
@pytest.mark.parametrize("rows", [128, 256])
def test_many_decodes_of_low_ranks(
    relative_error: RelativeError, rows: int, num_adapters: int | None, dtype: torch.dtype
) -> None:
    """With entries for each row, as the engine's tables have: one adapter, 16, or as many as rows (some without)."""
    used = num_adapters or rows
    segment_rows = [rows // used] * used + [0] * (rows - used)
    ranks = [(16, 8, 0, 5)[adapter % 4] for adapter in range(rows)]
    case = make_case(segment_rows, ranks, dtype=dtype, h_in=4096, slice_widths=(11008, 11008))
    shape = case.table.shape
    assert expand_config(shape, 2, 11008, dtype).tile_programs < rows <= shape.max_tiles
    expected = case.expected_delta()
    assert relative_error(case.delta(pdl=True), expected) < GPU_TOLERANCES[dtype]
    assert relative_error(case.added_again(), case.y.double() + expected) < GPU_TOLERANCES[dtype]
    assert torch.equal(case.delta(), case.delta())


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("h_in", "slice_widths"),
    [
        *((11008, (4096,)), (4096, (11008, 11008)), (13824, (5120,))),
        # One rank of eight of a 70B.
        *((8192, (1024, 128, 128)), (1024, (8192,)), (8192, (3584, 3584)), (3584, (8192,))),
    ],
)
def test_other_widths_with_pdl(relative_error: RelativeError, h_in: int, slice_widths: tuple[int, ...]) -> None:
    case = make_case([1] * 20 + [3, 9], mixed_ranks(22), dtype=torch.bfloat16, h_in=h_in, slice_widths=slice_widths)
    expected = case.expected_delta()
    for _ in range(5):
        assert relative_error(case.delta(pdl=True), expected) < GPU_TOLERANCES[torch.bfloat16]
        case.v.fill_(torch.nan)


def capture(case: TableCase) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """A graph of the case's shrink and expand, and the delta that it writes."""
    case.delta()
    delta = torch.full_like(case.y, torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        shrink(case.v, case.x, case.a_pages, case.table)
        expand(delta, case.v, case.b_pages, case.out_offsets, case.table, accumulate=False)
    return graph, delta


def refill(case: TableCase, indptr: list[int], pages: list[list[int]]) -> None:
    """Gives the case other segments, in the table that it has on the device, and poisons v."""
    case.indptr, case.pages = indptr, pages
    words = np.empty(case.table.shape.num_words, np.int32)
    case.table.shape.fill(words, indptr, pages)
    case.table.words.copy_(torch.from_numpy(words))
    case.v.fill_(torch.nan)


@pytest.mark.gpu
def test_a_cuda_graph_serves_other_segments_than_it_was_captured_with(relative_error: RelativeError) -> None:
    case = make_case([1] * 32, [16] * 32, dtype=torch.bfloat16, h_in=4096, slice_widths=(4096,))
    graph, delta = capture(case)
    own = case.pages
    steps = (([0, 20, 21, 30], [own[0], [], own[1][:1]]), ([0, 32], [own[5]]), ([0, 1, 2], [own[3][1:], own[9]]))
    for indptr, pages in steps:
        refill(case, indptr, pages)
        delta.fill_(torch.nan)
        graph.replay()
        assert relative_error(delta, case.expected_delta()) < GPU_TOLERANCES[torch.bfloat16]


@pytest.mark.gpu
def test_a_cuda_graph_serves_other_prompts_than_it_was_captured_with(relative_error: RelativeError) -> None:
    """The counts of programs are zero again after each replay."""
    widths = (4096, 1024, 1024)
    case = make_case([1024] + [1] * 31, [16] * 32, dtype=torch.bfloat16, h_in=4096, slice_widths=widths)
    graph, delta = capture(case)
    own = case.pages
    for indptr, pages in (([0, 1000, 1001, 1055], [own[0], [], own[1][:1]]), ([0, 3, 600], [own[5], own[6]])):
        refill(case, indptr, pages)
        graph.replay()
        first = delta.clone()
        assert relative_error(first, case.expected_delta()) < GPU_TOLERANCES[torch.bfloat16]
        for _ in range(50):
            delta.fill_(torch.nan)
            graph.replay()
            assert torch.equal(delta, first)


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [[0] * 64, [16] * 32 + [0] * 32])
def test_pdl_launches_wait_for_readers_of_what_they_write(ranks: list[int]) -> None:
    """A kernel that lets the next one start early reads y, which the pair behind it overwrites, with zeros too."""
    width = 11008
    case = make_case([1] * 64, ranks, dtype=torch.bfloat16, h_in=4096, slice_widths=(width, width))
    y, out = case.y.clone(), case.y.new_empty(len(case.y), width)
    silu_and_mul(out, y)
    expected = out.clone()

    def read_then_write() -> None:
        silu_and_mul(out, y, pdl=True)
        shrink(case.v, case.x, case.a_pages, case.table, pdl=True)
        expand(y, case.v, case.b_pages, case.out_offsets, case.table, accumulate=False, pdl=True)

    read_then_write()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        read_then_write()
    for _ in range(20):
        y.copy_(case.y)
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.parametrize("prompt_rows", [17, 1000])
@pytest.mark.parametrize(("first_token", "dtype"), [(0, torch.float32), (7, torch.float16)])
def test_an_embedding_picks_columns(
    relative_error: RelativeError, first_token: int, dtype: torch.dtype, prompt_rows: int
) -> None:
    """As a product with one-hot rows; tokens that A does not have add nothing."""
    case = make_case([1, prompt_rows, 2, 1], [12, 24, 0, 256], dtype=dtype)
    num_tokens = case.a_pages.shape[3]
    token_ids = torch.randint(0, num_tokens + 2 * first_token, (len(case.x),), device=DEVICE, dtype=torch.int32)
    known = torch.nn.functional.one_hot((token_ids - first_token).clamp(0, num_tokens - 1).long(), num_tokens)
    is_known = (token_ids >= first_token) & (token_ids < first_token + num_tokens)
    case.x = (known * is_known[:, None]).to(dtype)
    y = case.y.clone()
    shrink_embedding(case.v, token_ids, case.a_pages, case.table, first_token=first_token)
    expand(y, case.v, case.b_pages, case.out_offsets, case.table, accumulate=True)
    assert relative_error(y, case.y.double() + case.expected_delta()) < TOLERANCES[dtype]
