"""Times x A B of a prefill's rows on several cores: by processes, or by torch's threads in one (figure 18)."""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from punica_kernels.exchange_words import done_word
from punica_serve.bench.cpu_assist_figures.figure_settings import FigureSettings, LayerTime
from punica_serve.bench.cpu_assist_figures.measuring_thread import off_last_cores
from punica_serve.engine.adapters.layer_arrival import CpuArrival
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.exchange_memory import GroupWeights
from punica_serve.engine.cpu_assist.lora_share import HostShare
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import RequestFailed

#: Even a slow machine has done all layers by then.
MAX_WAIT_S = 30.0


def measure_layers(
    assist: CpuAssist, host: HostMemory, weights: Sequence[GroupWeights], settings: FigureSettings
) -> list[LayerTime]:
    """Times x·A·B by processes, and by as many threads. Raises RequestFailed if processes don't answer."""
    counts = [count for count in settings.counts if count <= len(assist.pool.ready)]
    times = [LayerTime("processes", count, _by_processes(assist, weights, count, settings)) for count in counts]
    return times + [
        LayerTime("threads", count, _by_threads(assist, host, weights, count, settings)) for count in counts
    ]


def _by_processes(assist: CpuAssist, weights: Sequence[GroupWeights], count: int, settings: FigureSettings) -> float:
    """Median seconds of a layer, with the copies of x and of the result within shared memory."""
    with off_last_cores(max(settings.counts)):
        times = [_job_s(assist, weights, count, settings.num_tokens) for _ in range(settings.num_repeats + 1)]
    return statistics.median(times[1:])


def _job_s(assist: CpuAssist, weights: Sequence[GroupWeights], count: int, num_tokens: int) -> float:
    if not assist.wait_until_free(MAX_WAIT_S):
        raise RequestFailed("the CPU processes don't end their work")
    arrival = CpuArrival(assist.shape.num_layers, lambda: None)
    limits = WaitLimits.both(MAX_WAIT_S)
    job = assist.start_job(weights, num_tokens, assist.pool.ready[:count], arrival, limits, lambda *_: None)
    x = torch.zeros(num_tokens, assist.shape.groups[0].in_features, dtype=assist.shape.torch_dtype)
    try:
        started_s = time.perf_counter()
        for layer in range(assist.shape.num_layers):
            exchange_layer(job, layer, x)
        return (time.perf_counter() - started_s) / assist.shape.num_layers
    finally:
        job.end()


def exchange_layer(job: AssistJob, layer: int, x: Tensor) -> Tensor:
    """The rows that the processes add in a layer's first group to x [rows, in], on any device.

    They are [rows, out] in shared memory. The thread waits actively, as a device does. Raises RequestFailed if the
    processes don't answer in time.
    """
    memory, index = job.memory, job.memory.shape.index(layer, 0)
    memory.rows_of_x(0, job.num_rows).copy_(x)
    memory.sent_words[index] = job.key
    word, deadline_s = done_word(job.key, index), time.monotonic() + job.limits.in_all_s
    while not all(memory.done[process] >= word for process in job.words.processes):
        if time.monotonic() > deadline_s:
            raise RequestFailed("the CPU processes don't answer in time")
        os.sched_yield()
    return memory.rows_of_delta(0, job.num_rows)


def _by_threads(
    assist: CpuAssist, host: HostMemory, weights: Sequence[GroupWeights], count: int, settings: FigureSettings
) -> float:
    shape, group = assist.shape, assist.shape.groups[0]
    own = HostShare(host.bytes, shape, tuple(weights))
    x = torch.zeros(settings.num_tokens, group.in_features, dtype=shape.torch_dtype)
    v = assist.memory.columns_of_v(0, weights[0].num_pages, settings.num_tokens)
    delta = torch.empty(settings.num_tokens, group.out_features, dtype=shape.torch_dtype)

    def all_layers_s() -> float:
        started_s = time.perf_counter()
        for layer in range(shape.num_layers):
            share = own.fetch(layer, 0)
            share.shrink(v, x)
            share.expand(delta, v)
        return (time.perf_counter() - started_s) / shape.num_layers

    with _threads(count), torch.inference_mode():
        all_layers_s()
        return statistics.median(all_layers_s() for _ in range(settings.num_repeats))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
