"""The thread that measures stays off the processes' cores, and goes back to all of them."""

import os

import pytest
import torch

from punica_serve.bench.cpu_assist_figures.measuring_thread import off_last_cores


@pytest.mark.parametrize("count", [0, 1, 10_000])
def test_the_thread_is_off_the_last_cores_as_long_as_there_are_others(count: int) -> None:
    cores, num_threads = os.sched_getaffinity(0), torch.get_num_threads()
    with off_last_cores(count):
        kept = sorted(cores)[: len(cores) - count] if 0 < count < len(cores) else sorted(cores)
        assert sorted(os.sched_getaffinity(0)) == kept
        assert torch.get_num_threads() == 1
    assert os.sched_getaffinity(0) == cores
    assert torch.get_num_threads() == num_threads
