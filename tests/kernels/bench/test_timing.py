"""The timing method: what it divides by, and that it runs every call. Times themselves are the machine's."""

import time
from functools import partial

import pytest
import torch

from punica_kernels.bench.timing import copy_bytes_per_s, graph_us, launched_us

CPU = torch.device("cpu")


def test_a_time_is_that_of_one_call() -> None:
    started_s = time.perf_counter()
    microseconds = launched_us([lambda: time.sleep(0.001)] * 10, CPU, repeats=1)
    assert 1000 <= microseconds <= (time.perf_counter() - started_s) * 1e6 / 10


def test_every_layer_is_called() -> None:
    called: list[int] = []
    graph_us([partial(called.append, layer) for layer in range(4)], CPU, replays=1)
    assert set(called) == {0, 1, 2, 3}


def test_a_copy_counts_what_is_read_and_what_is_written() -> None:
    assert 1e6 < copy_bytes_per_s(CPU, num_bytes=1 << 20) < 1e12


@pytest.mark.gpu
def test_a_graph_is_timed_on_cold_weights() -> None:
    """Thirty-two products of 32 MiB each can't be quicker than the memory, however often they are replayed."""
    device = torch.device("cuda")
    weights = [torch.ones(1 << 24, dtype=torch.bfloat16, device=device) for _ in range(32)]
    out = torch.empty((), dtype=torch.bfloat16, device=device)
    calls = [partial(torch.amax, weight, 0, out=out) for weight in weights]
    assert weights[0].nbytes / graph_us(calls, device) * 1e6 < 1.15 * copy_bytes_per_s(device)
