"""Ranks as streams of one process on one card: it checks results, never time."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from peer_ranks import Case, Exchange, expected, inputs_of, norm
from punica_kernels.peer_memory import PeerMemory, piece_bytes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(300),
]
_ABSENT = Path(__file__).parents[1] / "support" / "absent_rank.py"
_MAX_ROWS = 256
#: Relative: one rounding of the quotient, one of the result.
_TOLERANCE = 1.6e-2
_ROWS = (1, 32, 3, 256, 1, 32)


def _cases(width: int, dtype: torch.dtype) -> list[Case]:
    """Steps of different numbers of rows, one after the other, in all variants."""
    variants: Sequence[Case] = (
        Case(1),
        Case(1, delta_dtype=dtype),
        Case(1, splits=None, delta_dtype=torch.float32, weight_dtype=torch.float32),
        Case(1, splits=4, weight_dtype=torch.float32, with_added_weight=True),
    )
    return [
        Case(rows, width, dtype, each.splits, each.delta_dtype, each.weight_dtype, each.with_added_weight)
        for each in variants
        for rows in _ROWS
    ]


class _Card:
    """Ranks that share a card: each on a stream of its own, with its share of a quarter of the multiprocessors."""

    def __init__(self, size: int, width: int, dtype: torch.dtype) -> None:
        num_bytes = piece_bytes(_MAX_ROWS, width, dtype)
        self.pieces = [torch.zeros(num_bytes, dtype=torch.uint8, device="cuda") for _ in range(size)]
        max_programs = torch.cuda.get_device_properties(0).multi_processor_count // 4 // size
        self.ranks = [
            PeerMemory.of_pieces(self.pieces, rank, _MAX_ROWS, width, dtype, max_programs) for rank in range(size)
        ]
        self.streams = [torch.cuda.Stream() for _ in range(size)]

    def exchanges(self, cases: Sequence[Case]) -> list[list[Exchange]]:
        """By rank. Their kernels are loaded, while no other rank waits: loading may wait for all that runs."""
        by_rank = [[Exchange(case, memory, "cuda") for case in cases] for memory in self.ranks]
        for memory, piece, exchanges in zip(self.ranks, self.pieces, by_rank, strict=True):
            for exchange in exchanges:
                piece[: 2 * _MAX_ROWS * 4].view(torch.int32).fill_(memory.size - 1)
                exchange()
                exchange.restart()
        torch.cuda.synchronize()
        for memory, piece in zip(self.ranks, self.pieces, strict=True):
            piece.zero_()
            memory.turns.zero_()
        torch.cuda.synchronize()
        return by_rank


def _check(case: Case, results: Sequence[tuple[Tensor, Tensor]]) -> None:
    """``results``: of each rank."""
    residual, out = results[0]
    wanted = expected(case, len(results))
    torch.testing.assert_close(residual.cpu().double(), wanted, rtol=_TOLERANCE, atol=2 * _TOLERANCE)
    weight = inputs_of(case, 0).weight
    torch.testing.assert_close(out.cpu().double(), norm(residual.cpu(), weight), rtol=_TOLERANCE, atol=1e-6)
    for other in results[1:]:
        assert torch.equal(other[0], residual) and torch.equal(other[1], out), "the same bits on each rank"


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("width", "dtype"),
    [
        (4096, torch.bfloat16),
        (8192, torch.bfloat16),
        (5376, torch.bfloat16),
        (1025, torch.float16),
        (70, torch.float32),
    ],
)
def test_ranks_on_one_card(width: int, dtype: torch.dtype, size: int) -> None:
    card, cases = _Card(size, width, dtype), _cases(width, dtype)
    for case, exchanges in zip(cases, zip(*card.exchanges(cases), strict=True), strict=True):
        for exchange, stream in zip(exchanges, card.streams, strict=True):
            with torch.cuda.stream(stream):
                exchange()
        torch.cuda.synchronize()
        _check(case, [exchange.results for exchange in exchanges])


def _captured(exchange: Exchange, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """An odd number of exchanges, so that a replay begins in the other place than the one before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(3):
            exchange.restart()
            exchange()
    return graph


def test_graphs_of_other_numbers_of_rows_are_replayed_in_turns() -> None:
    cases = [Case(rows, 4096, torch.bfloat16) for rows in (1, 32, 5)]
    card = _Card(2, 4096, torch.bfloat16)
    by_rank = card.exchanges(cases)
    graphs = [
        [_captured(exchange, stream) for exchange in exchanges]
        for exchanges, stream in zip(by_rank, card.streams, strict=True)
    ]
    for index in (0, 1, 2, 1, 1, 0, 2, 0, 1, 2) * 5:
        for own, stream in zip(graphs, card.streams, strict=True):
            with torch.cuda.stream(stream):
                own[index].replay()
    torch.cuda.synchronize()
    for case, exchanges in zip(cases, zip(*by_rank, strict=True), strict=True):
        _check(case, [exchange.results for exchange in exchanges])


def test_a_rank_that_does_not_come_ends_the_wait_with_an_error() -> None:
    """In a process of its own: the error ends its use of the GPU."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, _ABSENT], env=environment, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr
    assert "a rank has not come to an exchange of its group" in ended.stderr
