"""Exchanges with CPU processes of a step that runs on a CPU itself: the same words, written and read by its thread."""

import time

import torch
from torch import Tensor

from punica_kernels.exchange_words import done_word
from punica_serve.engine.adapters.layer_arrival import ArrivalFailed, CpuArrival
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.protocol import LoraGroup

#: Between two looks at the processes' words.
_PAUSE_S = 20e-6


class TorchExchange:
    """The exchanges of one step without decodes."""

    def __init__(self, job: AssistJob) -> None:
        self._job = job
        self._deadline_s = time.perf_counter() + job.limits.in_all_s

    def run(self, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
        """The rows that the adapter adds to x [rows, in]: [rows, out], valid until the next call.

        None if the layer has arrived, or the adapter leaves the group alone. Raises ArrivalFailed if a process has
        died, or if they don't answer in time.
        """
        job, shape = self._job, self._job.memory.shape
        number = shape.group_number(group)
        if not job.words.weights[number].num_pages:
            return None
        index = shape.index(layer, number)
        if isinstance(job.arrival, CpuArrival) and job.arrival.has(layer):
            job.memory.sent_words[index] = -job.key
            return None
        job.memory.rows_of_x(number, job.num_rows).copy_(x)
        job.memory.sent_words[index] = job.key
        self._wait(done_word(job.key, index))
        return job.memory.rows_of_delta(number, job.num_rows)

    def _wait(self, word: int) -> None:
        memory, processes, limits = self._job.memory, self._job.words.processes, self._job.limits
        deadline_s = min(self._deadline_s, time.perf_counter() + limits.for_one_s)
        for process in processes:
            while memory.done[process] < word:
                if time.perf_counter() > deadline_s or memory.has_lost(processes):
                    self._job.is_late = True
                    raise ArrivalFailed
                time.sleep(_PAUSE_S)


def time_exchanges(job: AssistJob) -> float:
    """Seconds of one exchange of the first group, of a job that has just begun and exchanges nothing else."""
    exchange, shape = TorchExchange(job), job.memory.shape
    x = torch.zeros(job.num_rows, shape.groups[0].in_features, dtype=shape.torch_dtype)
    started_s = time.perf_counter()
    for layer in range(shape.num_layers):
        exchange.run(layer, shape.groups[0].name, x)
    return (time.perf_counter() - started_s) / shape.num_layers
