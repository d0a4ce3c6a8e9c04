"""How kernels are timed: the calls of many layers in one CUDA graph, on weights that no cache holds.

A model calls an operator once in each layer, on weights of that layer, so a benchmark gives one call for each of many
layers that share nothing but inputs and routing, which a model, too, has just written. Before each replay a read of 256
MiB flushes the L2 cache; within one, no weight is read twice. On a CPU the same calls are timed by the clock, caches
as they are: for smoke tests, not for figures.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

#: One operator call on one layer's weights.
Call = Callable[[], object]

REPLAYS = 7
#: Larger than any L2 cache yet built.
_FLUSH_BYTES = 256 << 20
# A flush takes 60 µs at 4 TB/s, and the replay of hundreds of kernels 100 µs on the host: with four of them the start
# event never waits for the host.
_FLUSHES = 4
_COPY_BYTES = 1 << 30
_COPIES = 12


def graph_us(calls: Sequence[Call], device: torch.device, replays: int = REPLAYS) -> float:
    """Microseconds of one call: the median over replays of a CUDA graph of all calls, divided by their number."""
    if device.type != "cuda":
        return launched_us(calls, device, replays)
    graph = _capture(calls, device)
    graph.replay()
    flush = _CacheFlush(device)
    times = []
    for _ in range(replays):
        flush()
        times.append(_event_us(graph.replay))
    return statistics.median(times) / len(calls)


def launched_us(calls: Sequence[Call], device: torch.device, repeats: int = 3) -> float:
    """Microseconds of one call when each is launched from Python: the host's time where that is the longer one."""
    _warm_up(calls)

    def run() -> None:
        for call in calls:
            call()

    measure = _event_us if device.type == "cuda" else _clock_us
    return statistics.median(measure(run) for _ in range(repeats)) / len(calls)


def copy_bytes_per_s(device: torch.device, num_bytes: int = _COPY_BYTES) -> float:
    """Bytes read and written per second by a copy within the device's memory: the roof of all that is byte bound.

    Launched one by one: in a graph a copy is the copy engine's, which is a third slower than the multiprocessors.
    """
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    calls = [lambda: target.copy_(source)]
    return 2 * num_bytes / launched_us(calls, device, repeats=_COPIES) * 1e6


def matmul_flop_per_s(device: torch.device, dtype: torch.dtype, size: int = 8192) -> float:
    """Floating-point operations per second of a large square product: the roof of all that is arithmetic bound."""
    a, b = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(a)
    microseconds = graph_us([lambda: torch.mm(a, b, out=out)] * 2, device)
    return 2 * size**3 / microseconds * 1e6


def empty_kernel_us(device: torch.device) -> float:
    """Microseconds of a kernel that does nothing, in a graph of many: the floor of all that is bound by launches."""
    if device.type != "cuda":
        return 0.0
    return graph_us([lambda: torch.cuda._sleep(0)] * 64, device)


class _CacheFlush:
    """Reads more than the L2 cache holds and writes next to nothing, so that no dirty lines are left to write back."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.zeros(_FLUSH_BYTES // 4, dtype=torch.int32, device=device)
        self._out = torch.empty((), dtype=torch.int32, device=device)

    def __call__(self) -> Tensor:
        for _ in range(_FLUSHES):
            torch.amax(self._buffer, 0, out=self._out)
        return self._out


def _warm_up(calls: Sequence[Call]) -> None:
    """Compiles what is not compiled, which nothing may do while a graph is captured."""
    for call in calls:
        call()


def _capture(calls: Sequence[Call], device: torch.device) -> torch.cuda.CUDAGraph:
    # Not torch.cuda.graph(): it collects garbage and empties the allocator's cache at every entry, which takes longer
    # than the measurement.
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize(device)
    # One stream for warm-up and all captures, since cuBLAS keeps a workspace for each that it has seen.
    with torch.cuda.stream(_capture_stream(device)):
        _warm_up(calls)
        torch.cuda.synchronize(device)
        graph.capture_begin()
        try:
            for call in calls:
                call()
        finally:  # else nothing could run on the device any more
            graph.capture_end()
    return graph


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    # Above other streams that a graph branches off to, as the engine's.
    return torch.cuda.Stream(device, priority=-1)


def _event_us(run: Callable[[], None]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3


def _clock_us(run: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    run()
    return (time.perf_counter() - start_s) * 1e6
