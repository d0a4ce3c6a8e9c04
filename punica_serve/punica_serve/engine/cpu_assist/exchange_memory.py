"""The memory that a worker shares with its CPU processes: the job, the words that both sides write, and the rows.

Nothing is serialised. A job is a few integers; x and what is added lie where the device writes and reads them; the
adapter lies in the host cache, which the processes map too. Each word has one writer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_kernels.exchange_words import MAX_PROCESSES, WORD_STRIDE
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.protocol import LoraGroup

Words = npt.NDArray[np.int64]

_ALIGNMENT_BYTES = 4096


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
    #: For each group of the model.
    weights: tuple[GroupWeights, ...]
    #: The rows of each process; those without rows do nothing.
    rows: dict[int, range]


class ExchangeMemory:
    """Views of one stretch of shared memory."""

    def __init__(self, memory: Tensor, shape: ExchangeShape) -> None:
        """``memory``: uint8 [``exchange_num_bytes(shape)``], zero at first."""
        places = _places(shape)
        self.shape = shape
        self._job: Words = _numpy(memory, places["job"], torch.int64)
        #: int64 [MAX_PROCESSES * WORD_STRIDE]: a line for each process, which it alone writes but at its start.
        self.process_words = _view(memory, places["processes"], torch.int64)
        lines: Words = self.process_words.numpy().reshape(MAX_PROCESSES, WORD_STRIDE)
        #: By process: the newest rows that it has written (``done_word``), the last job that it has left, its pid once
        #: it is ready.
        self.done, self.left, self.pids = lines[:, 0], lines[:, 1], lines[:, 2]
        #: int32 [exchanges]: the key once x is there, or its negative if the exchange is the device's own.
        self.sent = _view(memory, places["sent"], torch.int32)
        self.sent_words: npt.NDArray[np.int32] = self.sent.numpy()
        #: int32 [1]: the key of the last step that waited in vain.
        self.failed = _view(memory, places["failed"], torch.int32)[:1]
        self.x = _view(memory, places["x"], shape.torch_dtype)
        self.delta = _view(memory, places["delta"], shape.torch_dtype)

    def write_job(self, job: JobWords) -> None:
        """Publishes a job. All processes must have left the last one."""
        words = [job.key, self.ended_key]
        for weights in job.weights:
            words += [weights.a_start, weights.b_start, weights.num_pages]
        for process in range(MAX_PROCESSES):
            rows = job.rows.get(process, range(0))
            words += [rows.start, rows.stop]
        self._job[: len(words)] = words

    def read_job(self) -> JobWords:
        words: list[int] = self._job.tolist()
        first_row = 2 + 3 * len(self.shape.groups)
        weights = tuple(GroupWeights(*words[start : start + 3]) for start in range(2, first_row, 3))
        bounds = words[first_row : first_row + 2 * MAX_PROCESSES]
        rows = {number: range(*bounds[2 * number : 2 * number + 2]) for number in range(MAX_PROCESSES)}
        return JobWords(words[0], weights, rows)

    @property
    def ended_key(self) -> int:
        """The last job whose step has ended: nobody waits for its rows."""
        return int(self._job[1])

    def end_job(self, key: int) -> None:
        self._job[1] = key

    def rows_of_x(self, group: int, num_rows: int) -> Tensor:
        """[num_rows, in_features]"""
        return _rows(self.x, num_rows, self.shape.groups[group].in_features)

    def rows_of_delta(self, group: int, num_rows: int) -> Tensor:
        """[num_rows, out_features]"""
        return _rows(self.delta, num_rows, self.shape.groups[group].out_features)


def exchange_num_bytes(shape: ExchangeShape) -> int:
    """Bytes of the shared memory."""
    return max(int(place.stop) for place in _places(shape).values())


def _places(shape: ExchangeShape) -> dict[str, slice]:
    num_bytes = {
        "job": 8 * (2 + 3 * len(shape.groups) + 2 * MAX_PROCESSES),
        "processes": 8 * MAX_PROCESSES * WORD_STRIDE,
        "failed": 64,
        "sent": 4 * shape.num_exchanges,
        "x": shape.torch_dtype.itemsize * shape.max_rows * max(group.in_features for group in shape.groups),
        "delta": shape.torch_dtype.itemsize * shape.max_rows * max(group.out_features for group in shape.groups),
    }
    places: dict[str, slice] = {}
    end = 0
    for name, size in num_bytes.items():
        places[name] = slice(end, end + size)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places


def _view(memory: Tensor, place: slice, dtype: torch.dtype) -> Tensor:
    return memory[place].view(dtype)


def _numpy(memory: Tensor, place: slice, dtype: torch.dtype) -> npt.NDArray[Any]:
    return _view(memory, place, dtype).numpy()


def _rows(values: Tensor, num_rows: int, width: int) -> Tensor:
    return values[: num_rows * width].view(num_rows, width)
