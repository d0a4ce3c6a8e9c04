"""Sum over ranks, residual and norm in one launch, by processes in Triton's interpreter, which wait for each other."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

import peer_ranks
from peer_ranks import CASES, DTYPE, MAX_ROWS, WIDTH, Case, expected, inputs_of, norm
from punica_kernels.block_end import BlockEnd
from punica_kernels.gpu.all_reduce_norm import all_reduce_add_rms_norm
from punica_kernels.peer_memory import PeerMemory, piece_bytes
from triton_interpreter import interpreter_with_asserts

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
#: Relative: one rounding of the quotient, one of the result.
_TOLERANCE = 2e-3
_DEADLINE_S = 100.0

Results = list[list[tuple[Tensor, Tensor]]]


#: Ranks and cases. The last case has many rows, which takes the interpreter seconds.
_FEW = len(CASES) - 1


@pytest.fixture(
    scope="module",
    params=[(2, _FEW), *(pytest.param(each, marks=pytest.mark.slow) for each in [(2, len(CASES)), (4, _FEW)])],
)
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """By rank and case."""
    size, num_cases = request.param
    folder = tmp_path_factory.mktemp("ranks")
    for rank in range(size):
        (folder / f"piece-{rank}").write_bytes(bytes(piece_bytes(MAX_ROWS, WIDTH, DTYPE)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TRITON_INTERPRET": "1"}
    commands = [
        [sys.executable, peer_ranks.__file__, f"{folder}", f"{rank}", f"{size}", f"{num_cases}"] for rank in range(size)
    ]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    try:
        assert [process.wait(_DEADLINE_S) for process in processes] == [0] * size
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"results-{rank}") for rank in range(size)]


def test_each_rank_has_the_norm_of_the_sum(results: Results) -> None:
    for index, (residual, out) in enumerate(results[0]):
        case = CASES[index]
        wanted = expected(case, len(results))
        torch.testing.assert_close(residual.double(), wanted, rtol=_TOLERANCE, atol=2 * _TOLERANCE)
        torch.testing.assert_close(out.double(), norm(residual, inputs_of(case, 0).weight), rtol=_TOLERANCE, atol=1e-6)
        for others in results[1:]:
            assert torch.equal(others[index][0], residual) and torch.equal(others[index][1], out), "the same bits"


def _alone(size: int = 2) -> tuple[PeerMemory, list[Tensor]]:
    """The first rank, whose others do nothing, and the pieces."""
    pieces = [torch.zeros(piece_bytes(4, WIDTH, DTYPE), dtype=torch.uint8) for _ in range(size)]
    return PeerMemory.of_pieces(pieces, 0, 4, WIDTH, DTYPE, 4), pieces


def test_a_rank_that_does_not_come_ends_the_wait_with_an_error() -> None:
    memory, pieces = _alone()
    own = inputs_of(Case(2), 0)
    with interpreter_with_asserts(), pytest.raises(Exception, match="a rank has not come to an exchange of its group"):
        end = BlockEnd(own.residual, own.x, own.residual, own.weight, 0.0)
        all_reduce_add_rms_norm(end, memory, max_looks=3)
    counters = [piece[: 4 * 2 * 4].view(torch.int32).tolist() for piece in pieces]
    assert counters == [[0] * 8, [1, *[0] * 7]], "the other rank was told of the first row"


def test_rows_of_another_width_or_type_are_not_held() -> None:
    memory, _ = _alone()
    assert memory.holds(torch.empty(4, WIDTH, dtype=DTYPE))
    for other in (
        torch.empty(5, WIDTH, dtype=DTYPE),
        torch.empty(4, WIDTH + 1, dtype=DTYPE),
        torch.empty(4, WIDTH),
    ):
        assert not memory.holds(other)
