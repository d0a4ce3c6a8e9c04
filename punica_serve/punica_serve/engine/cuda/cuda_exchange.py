"""Exchanges with CPU processes within the CUDA graphs of steps: the device sends and waits, no thread of the host does.

A wait ends once a process has died, or after a number of looks at the host's words. A look's time is measured here, on
words of this very memory and others that are page-locked too, by a wait that nothing ends.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from punica_kernels.exchange_words import MAX_PROCESSES, NO_ARRIVAL_KEY, NUM_STEP_WORDS, ExchangeField, ExchangeTensors
from punica_kernels.gpu import host_exchange
from punica_serve.engine.adapters.layer_arrival import ArrivalWords, CudaArrival, layer_groups
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, ExchangeShape
from punica_serve.engine.cuda.step_input_buffer import Int32s
from punica_serve.protocol import LoraGroup

#: Looks by which the time of one is measured: some milliseconds.
_MEASURED_LOOKS = 4096
#: Two such numbers of looks fit into an int32.
_MOST_LOOKS = (1 << 30) - 1


class CudaExchange:
    """The exchanges of one engine's steps, which share memory and run one after the other."""

    def __init__(self, memory: ExchangeMemory, arrivals: ArrivalWords) -> None:
        """Measures the time of a look on the current stream. The shared memory must be page-locked."""
        device = arrivals.words.device
        self._shape = memory.shape
        self._tensors = ExchangeTensors(
            host_x=memory.x,
            host_delta=memory.delta,
            host_sent=memory.sent,
            host_done=memory.done_words,
            host_pids=memory.pid_words,
            host_failed=memory.failed,
            step=torch.zeros(NUM_STEP_WORDS, dtype=torch.int32, device=device),
            owner=torch.zeros(1, dtype=torch.int32, device=device),
            counter=torch.zeros(1, dtype=torch.int32, device=device),
            arrivals=arrivals.words,
        )
        self._timed: tuple[torch.cuda.CUDAGraph, Any] | None = None
        self.look_s = self._measure_look()

    def of_bucket(self, step_words: Tensor, num_prefill_rows: int) -> "BucketExchange":
        """The exchanges of one bucket. ``step_words``: its section of the input buffer, on the device."""
        return BucketExchange(replace(self._tensors, step=step_words), self._shape, num_prefill_rows)

    def words(self, job: AssistJob) -> Int32s:
        """The words of a job's step."""
        assert isinstance(job.arrival, CudaArrival) and job.arrival.ticket is not None
        return step_words(
            {
                ExchangeField.KEY: job.key,
                ExchangeField.NUM_ROWS: job.num_rows,
                ExchangeField.GROUPS: job.groups,
                ExchangeField.PROCESSES: job.processes,
                ExchangeField.ARRIVAL_SLOT: job.arrival.ticket.slot,
                ExchangeField.ARRIVAL_NUMBER: job.arrival.ticket.number,
                ExchangeField.MAX_LOOKS: self._max_looks(job.limits.in_all_s),
                ExchangeField.MAX_LOOKS_FOR_ONE: self._max_looks(job.limits.for_one_s),
            }
        )

    def time(self, job: AssistJob) -> float:
        """Seconds of one exchange of the first group, of a job that has just begun and exchanges nothing else."""
        graph = self._capture()
        self._tensors.step.copy_(torch.from_numpy(self.words(job)))
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(self._tensors.step.device)
        started.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1e3 / self._shape.num_layers

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The first group's exchanges in all layers, and nothing between them."""
        if self._timed is None:
            step, rows, group = self._tensors.step, self._shape.max_rows, self._shape.groups[0]
            x = torch.zeros(rows, group.in_features, dtype=self._shape.torch_dtype, device=step.device)
            delta = torch.zeros(rows, group.out_features, dtype=self._shape.torch_dtype, device=step.device)
            exchange = self.of_bucket(step, rows)

            def run() -> None:
                for layer in range(self._shape.num_layers):
                    exchange.send(layer, group.name, x)
                    exchange.receive(layer, group.name, delta)

            step.zero_()
            run()  # loads the kernels
            torch.cuda.synchronize(step.device)
            graph = torch.cuda.CUDAGraph()
            stream = torch.cuda.current_stream(step.device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                run()
            self._timed = graph, (x, delta)
        return self._timed[0]

    def _max_looks(self, seconds: float) -> int:
        return max(1, min(_MOST_LOOKS, int(seconds / self.look_s)))

    def _measure_look(self) -> float:
        """Seconds of one look, of as many programs as usual, while the answer does not come."""
        group, num_rows, device = self._shape.groups[0], self._shape.max_rows, self._tensors.step.device
        delta = torch.zeros(num_rows, group.out_features, dtype=self._shape.torch_dtype, device=device)
        # The processes may not be ready yet. Page-locked words, as theirs are, are read over the link too.
        pids = torch.ones(MAX_PROCESSES, dtype=torch.int64, pin_memory=True)
        tensors = replace(self._tensors, host_pids=pids)
        words = {
            ExchangeField.KEY: NO_ARRIVAL_KEY,
            ExchangeField.NUM_ROWS: num_rows,
            ExchangeField.GROUPS: 1,
            ExchangeField.PROCESSES: 1,
            ExchangeField.MAX_LOOKS: _MEASURED_LOOKS,
            ExchangeField.MAX_LOOKS_FOR_ONE: _MEASURED_LOOKS,
        }
        tensors.owner.fill_(NO_ARRIVAL_KEY)
        elapsed_s = 0.0
        for _ in range(2):  # the first time, the kernel is compiled and loaded
            tensors.step.copy_(torch.from_numpy(step_words(words)))
            started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            started.record()
            host_exchange.receive(delta, tensors, 0, 0, num_rows)
            ended.record()
            ended.synchronize()
            elapsed_s = float(started.elapsed_time(ended)) / 1e3
        tensors.owner.zero_()
        tensors.host_failed.zero_()
        tensors.step.zero_()
        return max(elapsed_s / _MEASURED_LOOKS, 1e-8)


class BucketExchange:
    """Launches of one bucket, for its graph: they depend on the step's words, not on the host."""

    def __init__(self, tensors: ExchangeTensors, shape: ExchangeShape, num_prefill_rows: int) -> None:
        self._tensors = tensors
        self._shape = shape
        self._num_prefill_rows = num_prefill_rows
        groups = layer_groups(shape.num_layers)
        #: The group of layers with which each layer arrives.
        self._arrives_with = [number for number, layers in enumerate(groups) for _ in layers]

    def send(self, layer: int, group: LoraGroup, x: Tensor) -> None:
        """Queues the copy of the prefill's rows of x to the host, unless the layer has arrived by then."""
        number = self._shape.group_number(group)
        places = (self._shape.index(layer, number), number, self._arrives_with[layer])
        host_exchange.send(x, self._tensors, *places, self._num_prefill_rows)

    def receive(self, layer: int, group: LoraGroup, delta: Tensor) -> None:
        """Queues the wait for the processes, and the copy of what they have computed into delta."""
        number = self._shape.group_number(group)
        index = self._shape.index(layer, number)
        host_exchange.receive(delta, self._tensors, index, number, self._num_prefill_rows)


def step_words(fields: Mapping[ExchangeField, int]) -> Int32s:
    """int32 [NUM_STEP_WORDS]: the other fields are 0."""
    words = np.zeros(NUM_STEP_WORDS, dtype=np.int32)
    for field, value in fields.items():
        words[field] = value
    return words
