"""The number of threads that read packed files follows from cores and ranks."""

import pytest

from punica_serve.engine.adapters.reader_count import reader_count


@pytest.mark.parametrize(
    ("num_cores", "num_ranks", "count"),
    [(1, 1, 4), (2, 1, 4), (8, 1, 4), (12, 1, 6), (16, 1, 8), (32, 1, 16), (192, 1, 16), (64, 2, 16), (64, 4, 8)],
)
def test_half_of_a_ranks_cores_read_within_what_a_disk_and_a_link_take(
    num_cores: int, num_ranks: int, count: int
) -> None:
    assert reader_count(num_cores, num_ranks) == count
