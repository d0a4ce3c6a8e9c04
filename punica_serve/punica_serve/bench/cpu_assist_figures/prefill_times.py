"""Times a prefill that processes help: the device waits for them by itself, or the host waits for both (figure 16).

All layers of one group of projections: the base product on the GPU, and beside it x A B on the processes.
"""

import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from punica_kernels.exchange_words import NUM_STEP_WORDS
from punica_serve.bench.cpu_assist_figures.figure_settings import AssistedPrefillTime, FigureSettings
from punica_serve.bench.cpu_assist_figures.layer_times import MAX_WAIT_S, exchange_layer
from punica_serve.bench.cpu_assist_figures.measuring_thread import off_last_cores
from punica_serve.engine.adapters.layer_arrival import ArrivalWords, CudaArrival
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.exchange_memory import GroupWeights
from punica_serve.engine.cuda.cuda_exchange import CudaExchange
from punica_serve.errors import RequestFailed

#: Runs one prefill, all of whose work is queued on the current stream when it returns.
_Prefill = Callable[[AssistJob], None]


def measure_prefills(
    assist: CpuAssist, weights: Sequence[GroupWeights], settings: FigureSettings
) -> list[AssistedPrefillTime]:
    """Times prefills both ways, over the number of processes. Raises RequestFailed if processes don't answer."""
    assert assist.arrival_words is not None
    prefills = _Prefills(assist, assist.arrival_words, settings.num_tokens)
    times = []
    for count in (count for count in settings.counts if count <= len(assist.pool.ready)):
        for run, waits in ((prefills.sync_free, "sync-free"), (prefills.synchronous, "synchronous")):
            with off_last_cores(max(settings.counts)):
                seconds = [prefills.time(run, weights, count) for _ in range(settings.num_repeats + 1)]
            median_s = statistics.median(seconds[1:])
            times.append(AssistedPrefillTime("sync-free" if waits == "sync-free" else "synchronous", count, median_s))
    return times


class _Prefills:
    """The tensors of one group, as a prefill of all layers has them."""

    def __init__(self, assist: CpuAssist, arrivals: ArrivalWords, num_tokens: int) -> None:
        self._assist, self._arrivals, self._num_tokens = assist, arrivals, num_tokens
        shape, device = assist.shape, arrivals.words.device
        self._group = group = shape.groups[0]

        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=shape.torch_dtype, device=device)

        self._x, self._delta = zeros(num_tokens, group.in_features), zeros(num_tokens, group.out_features)
        #: One weight per layer, so that no layer finds its weights in the L2 cache.
        self._base = zeros(shape.num_layers, group.in_features, group.out_features)
        self._exchange = CudaExchange(assist.memory, arrivals)
        self._step_words = torch.zeros(NUM_STEP_WORDS, dtype=torch.int32, device=device)
        self._graph = self._capture()

    def time(self, run: _Prefill, weights: Sequence[GroupWeights], count: int) -> float:
        """Seconds of one prefill with so many processes. Raises RequestFailed if they don't answer in time."""
        if not self._assist.wait_until_free(MAX_WAIT_S):
            raise RequestFailed("the CPU processes don't end their work")
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        job = self._start(weights, self._assist.pool.ready[:count])
        try:
            torch.cuda.synchronize(self._x.device)
            started.record()
            run(job)
            ended.record()
            ended.synchronize()
        finally:
            is_good = job.end()
        if not is_good:
            raise RequestFailed("the CPU processes did not answer in time")
        return float(started.elapsed_time(ended)) / 1e3

    def sync_free(self, job: AssistJob) -> None:
        """The device sends and waits within a CUDA graph."""
        self._step_words.copy_(torch.from_numpy(self._exchange.words(job)))
        self._graph.replay()

    def synchronous(self, job: AssistJob) -> None:
        """The host waits for x, then for the processes, in each layer."""
        for layer in range(self._assist.shape.num_layers):
            y = self._x @ self._base[layer]
            self._delta.copy_(exchange_layer(job, layer, self._x), non_blocking=True)
            y += self._delta

    def _start(self, weights: Sequence[GroupWeights], processes: Sequence[int]) -> AssistJob:
        arrival = CudaArrival(self._assist.shape.num_layers, lambda: None, self._arrivals.ticket())
        return self._assist.start_job(
            weights, self._num_tokens, processes, arrival, WaitLimits.both(MAX_WAIT_S), lambda *_: None
        )

    def _capture(self) -> torch.cuda.CUDAGraph:
        exchange = self._exchange.of_bucket(self._step_words, self._num_tokens)

        def run() -> None:
            for layer in range(self._assist.shape.num_layers):
                exchange.send(layer, self._group.name, self._x)
                y = self._x @ self._base[layer]
                exchange.receive(layer, self._group.name, self._delta)
                y += self._delta

        run()  # with the key 0: it loads the kernels, and exchanges nothing
        torch.cuda.synchronize(self._x.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run()
        return graph
