"""The memory that a worker shares with its CPU processes: the job, the words that both sides write, and the rows.

Nothing is serialised. A job is a few integers; x and what is added lie where the device writes and reads them; the
adapter lies in the host cache, which the processes map too. Each word has one writer, but that a process's number is
replaced when it has ended. x, v and delta are those of one exchange: the next x comes when all processes are done with
this one, and the next job when all have left the last.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_kernels.exchange_words import DEAD, MAX_PROCESSES
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, USUAL_LORA_RANK
from punica_serve.protocol import LoraGroup

Words = npt.NDArray[np.int64]

_ALIGNMENT_BYTES = 4096
#: int64 words of a cache line.
_LINE_WORDS = 8


class GroupShape(msgspec.Struct, frozen=True):
    """A projection group of a layer."""

    name: LoraGroup
    in_features: int
    out_offsets: tuple[int, ...]

    @property
    def out_features(self) -> int:
        return self.out_offsets[-1]

    @property
    def num_slices(self) -> int:
        return len(self.out_offsets) - 1


class ExchangeShape(msgspec.Struct, frozen=True, dict=True):
    """All that a process must know of the model. Exchanges are numbered layer by layer, group by group."""

    dtype: str
    num_layers: int
    groups: tuple[GroupShape, ...]
    #: Most rows of one job.
    max_rows: int

    @cached_property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def num_exchanges(self) -> int:
        return self.num_layers * len(self.groups)

    def index(self, layer: int, group: int) -> int:
        """The number of an exchange within its step."""
        return layer * len(self.groups) + group

    def group_number(self, name: LoraGroup) -> int:
        return next(number for number, group in enumerate(self.groups) if group.name == name)

    def a_shape(self, group: int, num_pages: int) -> tuple[int, ...]:
        shape = self.groups[group]
        return num_pages, self.num_layers, shape.num_slices, LORA_PAGE_RANKS, shape.in_features

    def b_shape(self, group: int, num_pages: int) -> tuple[int, ...]:
        return num_pages, self.num_layers, LORA_PAGE_RANKS, self.groups[group].out_features


@dataclass(frozen=True, slots=True)
class GroupWeights:
    """Where A and B of a group start in the host cache's memory, in bytes. No pages: the adapter leaves it alone."""

    a_start: int = 0
    b_start: int = 0
    num_pages: int = 0


@dataclass(frozen=True, slots=True)
class JobWords:
    """A job as the processes read it."""

    key: int
    #: Rows of x.
    num_rows: int
    #: The processes that divide the weights, in ascending order.
    processes: tuple[int, ...]
    #: For each group of the model.
    weights: tuple[GroupWeights, ...]

    @property
    def process_bits(self) -> int:
        return sum(1 << number for number in self.processes)


class ExchangeMemory:
    """Views of one stretch of shared memory."""

    def __init__(self, memory: Tensor, shape: ExchangeShape) -> None:
        """``memory``: uint8 [``exchange_num_bytes(shape)``], zero at first."""
        places = _places(shape)
        self.shape = shape
        self._job: Words = _numpy(memory, places["job"], torch.int64)
        #: int64 [MAX_PROCESSES], by process: the ``done_word`` of the newest exchange whose columns of delta it has
        #: written, and its pid while it lives and is ready.
        self.done_words, self.pid_words = (_view(memory, places[name], torch.int64) for name in ("done", "pids"))
        self.done: Words = self.done_words.numpy()
        self.pids: Words = self.pid_words.numpy()
        #: By process, each with a line of its own, since others look at them all the time: the last job that it has
        #: left, and the ``done_word`` of the newest exchange whose v it has written.
        lines: Words = _numpy(memory, places["lines"], torch.int64).reshape(MAX_PROCESSES, _LINE_WORDS)
        self.left, self.shrunk = lines[:, 0], lines[:, 1]
        #: int32 [exchanges]: the key once x is there, or its negative if the exchange is the device's own.
        self.sent = _view(memory, places["sent"], torch.int32)
        self.sent_words: npt.NDArray[np.int32] = self.sent.numpy()
        #: int32 [1]: the key of the last step that waited in vain.
        self.failed = _view(memory, places["failed"], torch.int32)[:1]
        self.x = _view(memory, places["x"], shape.torch_dtype)
        self.v = _view(memory, places["v"], shape.torch_dtype)
        self.delta = _view(memory, places["delta"], shape.torch_dtype)

    def write_job(self, job: JobWords) -> None:
        """Publishes a job. All processes must have left the last one."""
        words = [job.key, self.ended_key, job.num_rows, job.process_bits]
        for weights in job.weights:
            words += [weights.a_start, weights.b_start, weights.num_pages]
        self._job[: len(words)] = words

    def read_job(self) -> JobWords:
        key, _, num_rows, bits, *rest = self._job[: _num_job_words(self.shape)].tolist()
        processes = tuple(number for number in range(MAX_PROCESSES) if bits >> number & 1)
        weights = tuple(GroupWeights(*rest[start : start + 3]) for start in range(0, len(rest), 3))
        return JobWords(key, num_rows, processes, weights)

    @property
    def ended_key(self) -> int:
        """The last job whose step has ended: nobody waits for its exchanges."""
        return int(self._job[1])

    def end_job(self, key: int) -> None:
        self._job[1] = key

    def has_lost(self, processes: Iterable[int]) -> bool:
        """Whether one of these processes, which were ready, has died."""
        return not all(0 < self.pids[process] < DEAD for process in processes)

    def rows_of_x(self, group: int, num_rows: int) -> Tensor:
        """[num_rows, in_features]"""
        return _rows(self.x, num_rows, self.shape.groups[group].in_features)

    def columns_of_v(self, group: int, num_pages: int, num_rows: int) -> Tensor:
        """[slices * ranks, num_rows]: transposed, since each process writes some of the ranks."""
        return _rows(self.v, self.shape.groups[group].num_slices * num_pages * LORA_PAGE_RANKS, num_rows)

    def rows_of_delta(self, group: int, num_rows: int) -> Tensor:
        """[num_rows, out_features]"""
        return _rows(self.delta, num_rows, self.shape.groups[group].out_features)


def exchange_num_bytes(shape: ExchangeShape) -> int:
    """Bytes of the shared memory."""
    return max(int(place.stop) for place in _places(shape).values())


def _places(shape: ExchangeShape) -> dict[str, slice]:
    num_bytes = {
        "job": 8 * _num_job_words(shape),
        "done": 8 * MAX_PROCESSES,
        "pids": 8 * MAX_PROCESSES,
        "lines": 8 * MAX_PROCESSES * _LINE_WORDS,
        "failed": 64,
        "sent": 4 * shape.num_exchanges,
        "x": shape.torch_dtype.itemsize * shape.max_rows * max(group.in_features for group in shape.groups),
        "v": shape.torch_dtype.itemsize
        * shape.max_rows
        * USUAL_LORA_RANK
        * max(group.num_slices for group in shape.groups),
        "delta": shape.torch_dtype.itemsize * shape.max_rows * max(group.out_features for group in shape.groups),
    }
    places: dict[str, slice] = {}
    end = 0
    for name, size in num_bytes.items():
        places[name] = slice(end, end + size)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places


def _num_job_words(shape: ExchangeShape) -> int:
    """Key, key of the last job that has ended, rows, bits of processes, and the weights of each group."""
    return 4 + 3 * len(shape.groups)


def _view(memory: Tensor, place: slice, dtype: torch.dtype) -> Tensor:
    return memory[place].view(dtype)


def _numpy(memory: Tensor, place: slice, dtype: torch.dtype) -> npt.NDArray[Any]:
    return _view(memory, place, dtype).numpy()


def _rows(values: Tensor, num_rows: int, width: int) -> Tensor:
    return values[: num_rows * width].view(num_rows, width)
