"""A CPU process of a worker: it computes its share of the LoRA of a prefill, exchange after exchange.

Between jobs it sleeps on its pipe, whose end tells that the worker is gone. Before it first sleeps, it maps the host
cache's memory: else an adapter that it had not read before would cost thousands of page faults within a step. Within a
job it waits actively for x, and for the other processes between the two products, since an exchange takes as long as a
few switches between processes; but never past the end of the step or of another process of the job, nor for long.
"""

import mmap
import os
import select
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from punica_kernels.exchange_words import done_word
from punica_serve.engine.cpu_assist.exchange_memory import ExchangeMemory, ExchangeShape, JobWords
from punica_serve.engine.cpu_assist.life_word import shown_alive
from punica_serve.engine.cpu_assist.lora_share import HostShare, LayerShare
from punica_serve.engine.memory.page_mapping import map_pages
from punica_serve.learned_types import learned
from punica_serve.process.parent_death import end_with_parent

#: A step that has not gone on for this long will not, even if nobody says that it has ended.
_MAX_WAIT_S = 10.0
#: Memory that is mapped between two looks for a job: a few dozen microseconds.
_MAPPED_BYTES = 1 << 20
#: Looks at a word between two looks at everything else.
_LOOKS = 100


@dataclass(frozen=True, slots=True)
class AssistProcess:
    """One process, by its number among those of its worker."""

    number: int
    memory: ExchangeMemory
    host: Tensor

    def run(self, job: JobWords) -> None:
        """Computes its share of every exchange that the device does not do by itself."""
        shape, position = self.memory.shape, job.processes.index(self.number)
        weights = HostShare(self.host, shape, job.weights, position, len(job.processes))
        for layer in range(shape.num_layers):
            for group, own in enumerate(job.weights):
                if not own.num_pages:
                    continue
                share = weights.fetch(layer, group)  # while x is on its way
                is_wanted = self._wait_for_x(job, shape.index(layer, group))
                if is_wanted is None or (is_wanted and not self._compute(job, layer, group, share)):
                    return

    def _compute(self, job: JobWords, layer: int, group: int, share: LayerShare) -> bool:
        """Both products. False if the job is over before the other processes have done the first one."""
        memory, word = self.memory, done_word(job.key, self.memory.shape.index(layer, group))
        v = memory.columns_of_v(group, job.weights[group].num_pages, job.num_rows)
        share.shrink(v, memory.rows_of_x(group, job.num_rows))
        memory.shrunk[self.number] = word
        if not self._wait_for_peers(job, word):
            return False
        share.expand(memory.rows_of_delta(group, job.num_rows), v)
        memory.done[self.number] = word
        return True

    def _wait_for_x(self, job: JobWords, index: int) -> bool | None:
        """Whether the device wants an exchange; None if the job is over."""
        sent, answers = self.memory.sent_words, {job.key: True, -job.key: False}
        return self._wait(job, lambda: answers.get(sent[index]))

    def _wait_for_peers(self, job: JobWords, word: int) -> bool:
        """Waits until all processes of the job have written their share of v. False if the job is over first."""
        return all(self._wait_for_peer(job, process, word) for process in job.processes)

    def _wait_for_peer(self, job: JobWords, process: int, word: int) -> bool:
        shrunk = self.memory.shrunk
        return self._wait(job, lambda: True if shrunk[process] >= word else None) is True

    def _wait(self, job: JobWords, look: Callable[[], bool | None]) -> bool | None:
        """The first answer other than None of ``look``; None if the job is over before."""
        deadline_s = time.monotonic() + _MAX_WAIT_S
        while True:
            for _ in range(_LOOKS):
                if (answer := look()) is not None:
                    return answer
            if self._is_over(job) or time.monotonic() > deadline_s:
                return None
            os.sched_yield()

    def _is_over(self, job: JobWords) -> bool:
        """Whether the step has ended, or does not wait any more since a process of the job has died."""
        return self.memory.ended_key >= job.key or self.memory.has_lost(job.processes)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    end_with_parent()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    shape = msgspec.json.decode(options.shape, type=learned(ExchangeShape))
    memory = ExchangeMemory(_open(options.exchange, mmap.MAP_SHARED | mmap.MAP_POPULATE), shape)
    host = _open(options.host, mmap.MAP_SHARED)
    mapping = map_pages(host.data_ptr(), len(host), _MAPPED_BYTES) if options.map_host else iter(())
    _serve(AssistProcess(options.number, memory, host), mapping)


@torch.inference_mode()
def _serve(process: AssistProcess, mapping: Iterator[None]) -> None:
    """Runs jobs until the worker closes the pipe. Until ``mapping`` ends, it goes on while there is no job."""
    memory, last_key = process.memory, 0
    with shown_alive(memory.pids[process.number :][:1]):
        while _wait_for_job(mapping):
            job = memory.read_job()
            if job.key > last_key:
                last_key = job.key
                process.run(job)
            memory.left[process.number] = last_key


def _wait_for_job(mapping: Iterator[None]) -> bool:
    """False once the worker is gone."""
    pipe = sys.stdin.fileno()
    for _ in mapping:
        if select.select([pipe], [], [], 0)[0]:
            break
    return bool(os.read(pipe, 64))


def _open(place: str, flags: int) -> Tensor:
    """``place``: file descriptor, offset and number of bytes, separated by colons."""
    fd, offset, num_bytes = map(int, place.split(":"))
    mapping = mmap.mmap(fd, 0, flags=flags)
    return torch.frombuffer(mapping, dtype=torch.uint8)[offset : offset + num_bytes]


def _parse(arguments: list[str]) -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--number", required=True, type=int)
    parser.add_argument("--core", required=True, type=int)
    parser.add_argument("--shape", required=True)
    parser.add_argument("--exchange", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--map-host", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
