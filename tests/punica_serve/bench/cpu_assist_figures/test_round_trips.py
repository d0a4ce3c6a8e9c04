"""Bytes to real processes and back."""

import pytest

from punica_serve.bench.cpu_assist_figures.echo_process import share_of
from punica_serve.bench.cpu_assist_figures.round_trips import measure_round_trips


def test_all_bytes_come_back_over_both_ways() -> None:
    times = measure_round_trips((2,), 1001, 2)
    assert [(trip.way, trip.num_processes) for trip in times] == [("shared memory", 2), ("sockets", 2)]
    assert all(trip.seconds > 0 for trip in times)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_byte_has_one_process(count: int) -> None:
    shares = [share_of(number, count, 1001) for number in range(count)]
    assert [byte for share in shares for byte in range(1001)[share]] == list(range(1001))
