"""Paged attention: the torch implementation, and Triton's on a GPU or, on small shapes, in Triton's interpreter."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_case import DEVICE, GPU_TOLERANCES, REQUESTS, SCALE, TOLERANCES, check, make_case
from punica_kernels import paged_attention as public
from punica_kernels.gpu import paged_attention as triton


@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim", "page_size"), [(6, 2, 20, 4), (4, 4, 8, 16), (3, 1, 2, 1)])
def test_torch(heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype) -> None:
    case = make_case(heads, kv_heads, head_dim, page_size, dtype, device=torch.device("cpu"))
    check(case, public.paged_attention)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"), [(6, 2, 20, 4), (4, 4, 80, 16), (3, 1, 2, 8), (40, 1, 16, 16)]
)
def test_triton(heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype) -> None:
    check(make_case(heads, kv_heads, head_dim, page_size, dtype), triton.paged_attention)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "page_size", "num_programs"), [(2, 2, 4, 7), (6, 2, 8, 1), (6, 2, 8, 40), (3, 1, 1, 7)]
)
@pytest.mark.parametrize("attend", [public.paged_attention, triton.paged_attention], ids=["public", "triton"])
def test_divided_contexts_are_merged(
    attend: Callable[..., None], heads: int, kv_heads: int, page_size: int, num_programs: int
) -> None:
    """Twice: what a call leaves in the workspace harms no other."""
    device = torch.device("cpu") if attend is public.paged_attention else DEVICE
    case = make_case(heads, kv_heads, 20, page_size, torch.float32, [*REQUESTS, (70, 33)], device)
    case.divide(num_programs)
    for _ in range(2):
        check(case, attend)
        assert not case.workspace.counts.any()
        case.q.normal_()


@pytest.mark.parametrize(("window", "num_programs"), [(1, 1), (5, 40), (16, 7), (24, 40), (200, 7)])
@pytest.mark.parametrize("attend", [public.paged_attention, triton.paged_attention], ids=["public", "triton"])
def test_rows_see_their_window_alone(attend: Callable[..., None], window: int, num_programs: int) -> None:
    """Keys and values that no row sees are NaN, so reading them would show."""
    device = torch.device("cpu") if attend is public.paged_attention else DEVICE
    case = make_case(6, 2, 20, 4, torch.float32, [*REQUESTS, (70, 33), (90, 1)], device)
    case.slide(window)
    case.divide(num_programs)
    check(case, attend)


@pytest.mark.parametrize("soft_cap", [0.5, 50.0])
@pytest.mark.parametrize("attend", [public.paged_attention, triton.paged_attention], ids=["public", "triton"])
def test_scores_are_capped_softly(attend: Callable[..., None], soft_cap: float) -> None:
    device = torch.device("cpu") if attend is public.paged_attention else DEVICE
    case = make_case(6, 2, 20, 4, torch.float32, device=device)
    case.q *= 30
    case.soft_cap = soft_cap
    case.divide(7)
    check(case, attend)


def test_scores_far_below_zero_are_scores_all_the_same() -> None:
    """Equal ones: what rounding does to sums so large differs from one implementation to the next.

    One operation scales a score exactly and subtracts the highest one, which was rounded: beyond 1e9 that rounding
    alone exceeds the powers of two there are.
    """
    case = make_case(2, 1, 16, 4, torch.float32, [(9, 1)])
    case.q.zero_()[:, :, 0] = 1.0
    case.keys.copy_(torch.where(case.keys.isnan(), case.keys, -1e8))
    mean = case.values[case.pages[:3].long()].flatten(0, 1)[:9].mean(0)
    torch.testing.assert_close(case.run(triton.paged_attention)[0], mean.expand(2, -1))


def test_large_scores_do_not_overflow() -> None:
    case = make_case(2, 1, 16, 4, torch.float32, [(90, 3)])
    case.q *= 1000
    check(case, triton.paged_attention)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("q", torch.zeros(3, 3, 4)),
        ("keys", torch.zeros(5, 4, 2, 5)),
        ("values", torch.zeros(5, 3, 2, 4)),
        ("pages", torch.zeros(2, 3, dtype=torch.int32)),
    ],
)
def test_arguments_that_do_not_fit_are_named(argument: str, value: Any) -> None:
    case = make_case(4, 2, 4, 4, torch.float32, [(5, 3)], device=torch.device("cpu"))
    setattr(case, argument, value)
    with pytest.raises(ValueError, match=f"^{argument} must"):
        case.run(public.paged_attention)


@pytest.mark.parametrize(
    ("argument", "value"), [("out", torch.zeros(3, 4, 5)), ("tiles", torch.zeros(8, dtype=torch.int32))]
)
def test_what_a_call_writes_and_its_table_must_fit_too(argument: str, value: Tensor) -> None:
    case = make_case(4, 2, 4, 4, torch.float32, [(5, 3)], device=torch.device("cpu"))
    arguments = {"out": torch.zeros_like(case.q), "tiles": case.tiles(), argument: value}
    others = (case.q, case.keys, case.values, case.pages)
    with pytest.raises(ValueError, match=f"^{argument} must be .*, got {re.escape(str(list(value.shape)))}$"):
        public.paged_attention(arguments["out"], *others, arguments["tiles"], case.shape, case.workspace, SCALE)


@pytest.mark.parametrize("name", ["acc", "m_and_l", "counts"])
def test_a_workspace_made_for_less_is_refused(name: str) -> None:
    case = make_case(4, 2, 4, 4, torch.float32, [(5, 3)], device=torch.device("cpu"))
    enough = getattr(case.workspace, name)
    case.workspace = replace(case.workspace, **{name: enough[..., :-1]})
    with pytest.raises(ValueError, match=f"^workspace must have {name} of {enough.numel()} or more, got"):
        case.run(public.paged_attention)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 32, 128), (32, 8, 96), (16, 2, 256), (12, 12, 80)])
def test_model_shapes(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    decodes = [(length, 1) for length in (1, 15, 16, 17, 500, 2048)]
    check(make_case(heads, kv_heads, head_dim, 16, dtype, decodes), triton.paged_attention)
    prefills = [(300, 300), (1000, 77), (0, 5), *decodes]
    case = make_case(heads, kv_heads, head_dim, 16, dtype, prefills)
    for num_programs in (case.shape.num_programs, 100):
        case.divide(num_programs)
        check(case, triton.paged_attention)
    case.slide(256)
    case.soft_cap = 50.0
    check(case, triton.paged_attention)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "page_size"), [(4, 4, 128, 16), (12, 4, 64, 16), (8, 2, 128, 8), (4, 2, 256, 16)]
)
@pytest.mark.parametrize("window", [None, 5, 200])
def test_prompts_of_every_length(
    heads: int, kv_heads: int, head_dim: int, page_size: int, dtype: torch.dtype, window: int | None
) -> None:
    """On a Hopper GPU its own kernels serve them, but for short ones of heads of 256. The last ones have tall tiles."""
    of_16 = [(16, 16), (17, 16), (300, 16), (1000, 15), (4, 4), (0, 3), (2000, 1)]
    of_many = [*of_16, (127, 127), (128, 128), (129, 129), (257, 200), (1500, 400), (64, 64), (65, 63)]
    of_long = [*of_many, (513, 513), (1500, 700)]
    for requests in (of_16, of_many, of_long):
        case = make_case(heads, kv_heads, head_dim, page_size, dtype, requests)
        if window is not None:
            case.slide(window)
        check(case, triton.paged_attention)
        case.divide(40)
        check(case, triton.paged_attention)
        assert not case.workspace.counts.any()
        case.soft_cap = 20.0
        check(case, triton.paged_attention)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 150, 600])
def test_the_same_bits_whichever_program_merges(rows: int) -> None:
    case = make_case(8, 8, 128, 16, torch.bfloat16, [(4000, rows), (700, rows), (1500, rows)])
    case.divide(60)
    first = case.run(triton.paged_attention)
    for _ in range(50):
        assert torch.equal(case.run(triton.paged_attention), first)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "head_dim", "dtype", "block_m"),
    [
        (512, 128, torch.bfloat16, 64),
        (513, 128, torch.bfloat16, 128),
        (513, 256, torch.float16, 128),
        (513, 64, torch.bfloat16, 64),
        (513, 96, torch.bfloat16, 64),
        (513, 128, torch.float32, 16),
    ],
)
def test_tiles_of_long_prompts_are_tall_on_hopper(rows: int, head_dim: int, dtype: torch.dtype, block_m: int) -> None:
    case = make_case(2, 2, head_dim, 16, dtype, [(rows, rows)])
    is_hopper = torch.cuda.get_device_capability()[0] == 9
    assert case.shape.block_m == (block_m if is_hopper else min(block_m, 64))
    check(case, triton.paged_attention)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("head_dim", "dtype", "captured", "replayed"),
    [
        (80, torch.float32, [(100, 1), (35, 1), (900, 1)], [[(7, 1), (0, 1), (450, 1)], [(99, 1), (3, 1), (1, 1)]]),
        (
            128,
            torch.bfloat16,
            [(900, 900), (600, 100), (40, 40)],
            [[(640, 640), (0, 0), (7, 7)], [(900, 1), (600, 600), (39, 30)], [(0, 0), (0, 0), (1, 1)]],
        ),
    ],
    ids=["decodes", "long-prompts"],
)
def test_a_cuda_graph_serves_other_requests_than_it_was_captured_with(
    head_dim: int, dtype: torch.dtype, captured: list[tuple[int, int]], replayed: list[list[tuple[int, int]]]
) -> None:
    case = make_case(8, 2, head_dim, 16, dtype, captured)
    out, tiles = torch.full_like(case.q, torch.nan), case.tiles()
    arguments = (out, case.q, case.keys, case.values, case.pages, tiles, case.shape, case.workspace, SCALE)
    triton.paged_attention(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton.paged_attention(*arguments)

    def replay(result: Tensor, *_: Any) -> None:
        out.fill_(torch.nan)
        graph.replay()
        result.copy_(out)

    for requests in replayed:
        case.requests = requests
        tiles.copy_(case.tiles())
        case.q.normal_()
        check(case, replay)
