"""Attention of decodes over a balanced list of work: Triton's kernel, in its interpreter or on a GPU."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from punica_kernels.decode_table import DecodeTable, DecodeTableShape
from punica_kernels.gpu.decode_attention import DecodeWorkspace, decode_attention, make_workspace, num_programs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Relative Frobenius error, by what rounding the result costs.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}
SCALE = 0.3


@dataclass
class Case:
    """Requests in a cache that is NaN wherever they have not written."""

    lengths: list[int]
    pages: list[list[int]]
    q: Tensor
    keys: Tensor
    values: Tensor

    def words(self, shape: DecodeTableShape) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        indptr = np.cumsum([0, *map(len, self.pages)], dtype=np.int32)
        words = np.full(shape.num_words, 2**30, np.int32)
        own = shape.lay_out(np.array(self.lengths, np.int32), indptr, np.concatenate(self.pages).astype(np.int32))
        words[: len(own)] = own
        return words

    def run(self, shape: DecodeTableShape, workspace: DecodeWorkspace | None = None) -> Tensor:
        table = DecodeTable(torch.from_numpy(self.words(shape)).to(self.q.device), shape)
        _, heads, head_dim = self.q.shape
        workspace = workspace or make_workspace(shape.num_programs, heads, self.keys.shape[2], head_dim, self.q.device)
        out = torch.full_like(self.q, torch.nan)
        decode_attention(out, self.q, self.keys, self.values, table, workspace, SCALE)
        return out

    def expected(self) -> Tensor:
        """float64, request by request."""
        rows = []
        group = self.q.shape[1] // self.keys.shape[2]
        for length, pages, q in zip(self.lengths, self.pages, self.q.double(), strict=True):
            k, v = (
                side[pages].flatten(0, 1)[:length].double().repeat_interleave(group, 1)
                for side in (self.keys, self.values)
            )
            weights = (torch.einsum("hd,thd->ht", q, k) * SCALE).softmax(-1)
            rows.append(torch.einsum("ht,thd->hd", weights, v))
        return torch.stack(rows)

    def check(self, out: Tensor) -> None:
        expected = self.expected()
        error = float((out.double() - expected).norm() / expected.norm())
        assert error < TOLERANCES[out.dtype]


def make_case(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, page_size: int = 4
) -> Case:
    """Pages scattered over one layer of a pool of two."""
    needed = [-(-length // page_size) for length in lengths]
    pool = torch.full((sum(needed) + 3, 2, 2, page_size, kv_heads, head_dim), torch.nan, dtype=dtype, device=DEVICE)
    free = torch.randperm(len(pool)).tolist()
    pages = [[free.pop() for _ in range(count)] for count in needed]
    keys, values = pool[:, 1, 0], pool[:, 1, 1]
    for length, own in zip(lengths, pages, strict=True):
        for ordinal, page in enumerate(own):
            filled = min(page_size, length - ordinal * page_size)
            keys[page, :filled].copy_(torch.randn(filled, kv_heads, head_dim))
            values[page, :filled].copy_(torch.randn(filled, kv_heads, head_dim))
    return Case(lengths, pages, torch.randn(len(lengths), heads, head_dim).to(DEVICE, dtype), keys, values)


def shape_for(case: Case, programs: int) -> DecodeTableShape:
    return DecodeTableShape(len(case.lengths), programs, len(case.keys), case.keys.shape[1])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "lengths", "programs"),
    [
        (2, 2, 128, [1, 70, 9, 1, 1], 3),  # padded rows are of one token
        (4, 2, 64, [33, 1, 8], 40),  # more programs than work
        (3, 1, 256, [21, 40], 5),
        (1, 1, 128, [300], 4),  # several tiles in an item
        (1, 1, 256, [90], 16),  # more slots than lanes
        (1, 1, 64, [5, 2, 77, 1, 30], 1),  # one program for all
    ],
)
def test_rows_attend_to_their_own_past(
    heads: int, kv_heads: int, head_dim: int, lengths: list[int], programs: int, dtype: torch.dtype
) -> None:
    case = make_case(lengths, heads, kv_heads, head_dim, dtype)
    case.check(case.run(shape_for(case, programs)))


def test_a_workspace_serves_launch_after_launch() -> None:
    first, second = (make_case(lengths, 2, 1, 64, torch.float32) for lengths in ([50, 3, 19], [1, 64, 2]))
    shape = DecodeTableShape(3, 6, 40, 4)
    workspace = make_workspace(shape.num_programs, 2, 1, 64, DEVICE)
    for case in (first, second, first):
        case.check(case.run(shape, workspace))
        assert not workspace.finished.any()


def test_large_scores_do_not_overflow() -> None:
    case = make_case([90], 1, 1, 64, torch.float32)
    case.q *= 1000
    case.check(case.run(shape_for(case, 3)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(32, 32, 128), (16, 8, 128), (24, 8, 128), (12, 12, 64), (8, 8, 256)]
)
def test_a_graph_replays_other_lengths_and_repeats_itself(
    heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    cases = [
        make_case(lengths, heads, kv_heads, head_dim, dtype, page_size=16)
        for lengths in (torch.randint(1, high, (32,)).tolist() for high in (2, 1501, 300, 1501))
    ]
    shape = DecodeTableShape(32, num_programs(kv_heads, DEVICE), 32 * 100, 16)
    workspace = make_workspace(shape.num_programs, heads, kv_heads, head_dim, DEVICE)
    # The largest pool holds any case.
    pool = max((case.keys._base for case in cases if case.keys._base is not None), key=len).clone()
    table = DecodeTable(torch.from_numpy(cases[0].words(shape)).to(DEVICE), shape)
    q, out = cases[0].q.clone(), torch.empty_like(cases[0].q)

    def run() -> None:
        decode_attention(out, q, pool[:, 1, 0], pool[:, 1, 1], table, workspace, SCALE, chained=True)

    def stage(case: Case) -> None:
        own = case.keys._base
        assert own is not None
        pool[: len(own)].copy_(own)
        q.copy_(case.q)
        table.words.copy_(torch.from_numpy(case.words(shape)))
        out.fill_(torch.nan)

    stage(cases[0])
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for case in cases:
        stage(case)
        graph.replay()
        case.check(out)
        once = out.clone()
        for _ in range(20):
            graph.replay()
            assert torch.equal(out, once)
