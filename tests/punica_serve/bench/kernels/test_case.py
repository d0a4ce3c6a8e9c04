"""A batch, and the bytes it must move."""

import pytest

from punica_serve.bench.kernels.case import Case, paper_bytes, paper_flop
from punica_serve.workload import Population


def test_a_population_is_cut_into_segments_of_one_adapter_each() -> None:
    case = Case.of(Population.UNIFORM, 7, 16)
    assert case.lengths == (3, 2, 2) and case.indptr == (0, 3, 5, 7) and case.ranks == (16, 16, 16)
    assert Case("mixed", (1, 1, 1), (64, 8, 8)).rank_text == "8, 64"


def test_a_pair_moves_each_adapter_once_and_reads_and_writes_y() -> None:
    case = Case.of(Population.IDENTICAL, 3, 16)
    assert case.pair_bytes(4096, 11008, 2) == 2 * (16 * (4096 + 11008) + 3 * (4096 + 2 * 11008))


@pytest.mark.parametrize("num_adapters", [1, 64])
def test_the_papers_counts(num_adapters: int) -> None:
    assert paper_flop(64, 16, 4096) == 64 * 16 * 4096 * 2
    assert paper_bytes(64, num_adapters, 16, 4096) == (64 * (16 + 4096) + num_adapters * 16 * 4096) * 2
