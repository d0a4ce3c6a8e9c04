"""A CPU process of a worker: it computes the LoRA of its rows of a prefill, exchange after exchange.

Between jobs it sleeps on its pipe, whose end tells that the worker is gone. Within a job it waits for x actively, since
an exchange takes as long as a few switches between processes; but never past the end of the step, nor for long.
"""

import ctypes
import mmap
import os
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from punica_kernels.exchange_words import done_word
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, ExchangeShape, JobWords
from punica_serve.engine.cpu_assist.lora_rows import HostWeights, compute_rows

_PR_SET_PDEATHSIG = 1
#: A step that has not gone on for this long will not, even if nobody says that it has ended.
_MAX_WAIT_S = 10.0
#: Looks at a word between two looks at everything else.
_LOOKS = 100


@dataclass(frozen=True, slots=True)
class AssistProcess:
    """One process, by its number among those of its worker."""

    number: int
    memory: ExchangeMemory
    host: Tensor

    def run(self, job: JobWords) -> None:
        """Computes its rows of every exchange that the device does not do by itself."""
        shape, rows = self.memory.shape, job.rows[self.number]
        weights = HostWeights(self.host, shape, job.weights)
        num_rows = max(own.stop for own in job.rows.values())
        for layer in range(shape.num_layers):
            for group, own in enumerate(job.weights):
                if not own.num_pages:
                    continue
                a, b = weights.gather(layer, group)  # while x is on its way
                index = shape.index(layer, group)
                is_wanted = self._wait(index, job.key)
                if is_wanted is None:
                    return
                if is_wanted:
                    x = self.memory.rows_of_x(group, num_rows)[rows.start : rows.stop]
                    out = self.memory.rows_of_delta(group, num_rows)[rows.start : rows.stop]
                    compute_rows(out, x, a, b, shape.groups[group].out_offsets)
                    self.memory.done[self.number] = done_word(job.key, index)

    def _wait(self, index: int, key: int) -> bool | None:
        """Whether the device wants its rows of an exchange; None if the step is over."""
        sent, deadline_s = self.memory.sent_words, time.monotonic() + _MAX_WAIT_S
        while True:
            for _ in range(_LOOKS):
                word = sent[index]
                if word == key:
                    return True
                if word == -key:
                    return False
            if self.memory.ended_key >= key or time.monotonic() > deadline_s:
                return None
            os.sched_yield()


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the worker decides
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    shape = msgspec.json.decode(options.shape, type=ExchangeShape)
    memory = ExchangeMemory(_map(options.exchange), shape)
    _serve(AssistProcess(options.number, memory, _map(options.host)))


@torch.inference_mode()
def _serve(process: AssistProcess) -> None:
    """Runs jobs until the worker closes the pipe."""
    memory, last_key = process.memory, 0
    memory.pids[process.number] = os.getpid()
    while os.read(sys.stdin.fileno(), 64):
        job = memory.read_job()
        if job.key > last_key:
            last_key = job.key
            process.run(job)
        memory.left[process.number] = last_key


def _map(place: str) -> Tensor:
    """``place``: file descriptor, offset and number of bytes, separated by colons."""
    fd, offset, num_bytes = map(int, place.split(":"))
    mapping = mmap.mmap(fd, 0)
    return torch.frombuffer(mapping, dtype=torch.uint8)[offset : offset + num_bytes]


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--number", required=True, type=int)
    parser.add_argument("--core", required=True, type=int)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--exchange", required=True)
    parser.add_argument("--host", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
