"""Decodes that share prefixes read them once, and see what they would see alone."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from attention_case import DEVICE, GPU_TOLERANCES, SCALE, Case, check, make_case
from punica_kernels import paged_attention as public
from punica_kernels.gpu import paged_attention as triton

IMPLEMENTATIONS = pytest.mark.parametrize(
    "attend", [public.paged_attention, triton.paged_attention], ids=["public", "triton"]
)
#: Tokens of each request, and the requests, scattered, that share pages of 4 tokens.
CONTEXTS = [40, 33, 1, 90, 45, 0, 41, 37, 77, 70, 6, 35]
GROUPS = [([9, 1, 4], 8), ([0, 7], 1), ([3, 11, 8, 6], 5)]


def _case(
    attend: Callable[..., None], heads: int = 6, kv_heads: int = 2, head_dim: int = 20, page_size: int = 4
) -> Case:
    device = torch.device("cpu") if attend is public.paged_attention else DEVICE
    requests = [(context, 1) for context in CONTEXTS]
    case = make_case(heads, kv_heads, head_dim, page_size, torch.float32, requests, device)
    case.share(GROUPS)
    return case


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("heads", "kv_heads", "num_programs"), [(2, 2, 7), (4, 1, 60), (7, 1, 1), (7, 1, 60), (6, 2, 7)]
)
def test_results_are_merged_for_every_row(
    attend: Callable[..., None], heads: int, kv_heads: int, num_programs: int
) -> None:
    """Twice: what a call leaves in the workspace harms no other."""
    case = _case(attend, heads, kv_heads)
    case.divide(num_programs)
    for _ in range(2):
        check(case, attend)
        assert not case.workspace.counts.any()
        case.q.normal_()


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(1, 1, 15), (1, 1, 17), (1, 1, 32), (8, 2, 2), (8, 2, 17), (8, 1, 2), (8, 1, 15)]
)
def test_groups_larger_than_a_block_are_divided(
    attend: Callable[..., None], heads: int, kv_heads: int, size: int
) -> None:
    device = torch.device("cpu") if attend is public.paged_attention else DEVICE
    contexts = [(21 + number, 1) for number in range(size)]
    case = make_case(heads, kv_heads, 16, 4, torch.float32, [*contexts, (30, 1)], device)
    case.share([(list(reversed(range(size))), 5)])
    case.divide(9)
    check(case, attend)


@IMPLEMENTATIONS
@pytest.mark.parametrize(("window", "soft_cap"), [(200, None), (60, 0.5), (16, None), (36, 20.0), (None, 0.5)])
def test_windows_and_soft_caps_hold(attend: Callable[..., None], window: int | None, soft_cap: float | None) -> None:
    """A group in which the window hides something is not read together."""
    case = _case(attend)
    case.soft_cap = soft_cap
    case.divide(20)
    if window is not None:
        case.shape = replace(case.shape, window=window)
    check(case, attend)


@IMPLEMENTATIONS
def test_a_table_for_sharing_serves_requests_that_share_nothing(attend: Callable[..., None]) -> None:
    case = make_case(6, 2, 20, 4, torch.float32, [(context, 1) for context in CONTEXTS], DEVICE)
    case.shape = replace(case.shape, shares_prefixes=True)
    case.divide(20)
    check(case, attend)


def test_a_member_of_a_group_that_goes_leaves_the_others_as_they_were() -> None:
    """Numbers to the bit on a GPU: the order of sums depends on the splits alone, which are the same here.

    The interpreter multiplies with the CPU's BLAS, which may round a row by its place in the block.
    """
    case = _case(triton.paged_attention)
    case.shape = replace(case.shape, num_programs=1, min_split_tokens=1000)
    before = case.run(triton.paged_attention)
    case.requests[11] = (0, 1)
    case.group([*GROUPS[:2], ([3, 8, 6], 5)])
    after = case.run(triton.paged_attention)
    assert after[11].isnan().all() and not before[11].isnan().any()
    kept = [row for row, context in enumerate(CONTEXTS) if context and row != 11]
    tolerance = 0.0 if DEVICE.type == "cuda" else 1e-6
    torch.testing.assert_close(after[kept], before[kept], rtol=0.0, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", GPU_TOLERANCES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 32, 128), (32, 8, 128), (28, 4, 128), (16, 2, 256), (12, 12, 80)]
)
def test_model_shapes(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    """The same bits whichever program merges."""
    requests = [(1000 + 30 * number % 400, 1) for number in range(32)]
    case = make_case(heads, kv_heads, head_dim, 16, dtype, requests)
    case.share([(list(range(first, 32, 4)), 40 + 6 * first) for first in range(4)])
    for num_programs in (case.shape.num_programs, 60):
        case.divide(num_programs)
        check(case, triton.paged_attention)
        first = case.run(triton.paged_attention)
        assert all(torch.equal(case.run(triton.paged_attention), first) for _ in range(20))


@pytest.mark.gpu
def test_a_cuda_graph_serves_requests_that_share_and_others() -> None:
    case = make_case(8, 2, 128, 16, torch.float32, [(400, 1), (435, 1), (300, 1), (290, 1)])
    case.share([([0, 1, 2, 3], 18)])
    out, tiles = torch.full_like(case.q, torch.nan), case.tiles()
    arguments = (out, case.q, case.keys, case.values, case.pages, tiles, case.shape, case.workspace, SCALE)
    triton.paged_attention(*arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        triton.paged_attention(*arguments)
    for groups in ([([3, 2, 1], 18)], [([0, 1], 5), ([2, 3], 9)]):
        case.group(groups)
        tiles.copy_(case.tiles())
        case.q.normal_()
        out.fill_(torch.nan)
        graph.replay()
        torch.testing.assert_close(out.double(), case.expected(), rtol=1e-5, atol=1e-5)
