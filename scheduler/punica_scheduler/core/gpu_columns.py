"""Figures of all GPUs side by side, so that a placement computes a cost for each in one pass over arrays.

Only GPUs that changed since the last look are written again. A pass over a thousand costs what five searches in
``GpuIndex`` cost; a Python loop would cost fifty.
"""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from punica_scheduler.core.adapter_users import AdapterUsers
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.performance.batch_columns import Column
from punica_serve.protocol import LoraGroup

#: An entry for each GPU.
Mask: TypeAlias = npt.NDArray[np.bool_]

_LORA_GROUPS: tuple[LoraGroup, ...] = get_args(LoraGroup)
_LORA_ROWS = {group: row for row, group in enumerate(_LORA_GROUPS)}
#: The table's rows before the source's figures: free pages of each LoRA group, then room in tokens.
_ROOM_ROW, _NUM_ROOM_ROWS = len(_LORA_GROUPS), len(_LORA_GROUPS) + 1


class ColumnSource(Protocol):
    """A placement, which says what it asks of each GPU."""

    @property
    def num_figures(self) -> int:
        """How many figures there are of each GPU."""

    def figures_of(self, gpu: GpuRecord) -> tuple[float, ...]:
        """They depend on the GPU's state alone, and on no clock."""


class GpuColumns:
    """One column for each open GPU, by UUID from the highest down, so that the first of equals has the highest."""

    def __init__(self, users: AdapterUsers) -> None:
        self._users = users
        self._gpus: list[GpuRecord] = []
        self._place: dict[GpuRecord, int] = {}
        self._changed: set[GpuRecord] = set()
        self._source: ColumnSource | None = None
        self._table: Column = np.zeros((0, 0))

    def __len__(self) -> int:
        return len(self._gpus)

    def __getitem__(self, place: int) -> GpuRecord:
        return self._gpus[place]

    def rebuild(self) -> None:
        """GPUs joined or left: everything is written anew at the next ``look``."""
        self._source = None
        self._changed.clear()

    def changed(self, gpu: GpuRecord) -> None:
        """The GPU's figures may have changed."""
        self._changed.add(gpu)

    def look(self, open_gpus: Sequence[GpuRecord], source: ColumnSource) -> "GpuColumns":
        """Brings the columns up to date; ``open_gpus`` are all, by UUID from the lowest up."""
        if source is not self._source:
            self._gpus = list(reversed(open_gpus))
            self._place = {gpu: place for place, gpu in enumerate(self._gpus)}
            self._table = np.zeros((_NUM_ROOM_ROWS + source.num_figures, len(self._gpus)))
            self._changed, self._source = set(self._gpus), source
        for gpu in self._changed:
            if (place := self._place.get(gpu)) is not None:
                self._table[:, place] = _entries_of(gpu, source)
        self._changed.clear()
        return self

    def __iter__(self) -> Iterator[Column]:
        """The source's figures, a column of float64 for each."""
        return iter(self._table[_NUM_ROOM_ROWS:])

    def with_room(self, record: RequestRecord) -> Mask:
        """GPUs with a free place, and KvCache and LoRA pages for the request; those that run its adapter need none."""
        has_tokens: Mask = self._table[_ROOM_ROW] > record.num_tokens
        if not record.lora_pages:
            return has_tokens
        needs = record.lora_pages.items()
        has_pages: Mask = np.logical_and.reduce([self._table[_LORA_ROWS[group]] >= pages for group, pages in needs])
        if not has_pages.all():
            has_pages |= self.mask(self._users.of(record.digest))
        return has_tokens & has_pages

    def mask(self, gpus: Iterable[GpuRecord]) -> Mask:
        """Which of the columns' GPUs are among these."""
        found = np.zeros(len(self), dtype=np.bool_)
        found[[place for gpu in gpus if (place := self._place.get(gpu)) is not None]] = True
        return found

    def refuse(self, gpu: GpuRecord) -> None:
        """Until the GPU changes, its last figure is the least that there is: nobody needs to ask it again."""
        self._table[-1, self._place[gpu]] = -np.inf

    def prefer(self, cost: Column, gpus: Iterable[GpuRecord]) -> Column:
        """The cost, of whole numbers, changed so that these GPUs come before others of the same, in their order."""
        for rank, gpu in enumerate(gpus):
            if (place := self._place.get(gpu)) is not None:
                cost[place] -= 1.0 / (rank + 2)
        return cost

    def in_order(self, cost: Column) -> Iterator[GpuRecord]:
        """GPUs of finite cost from the least up; of equals, the highest UUID first.

        The first mostly has room, so only a second look sorts them.
        """
        if not len(cost):
            return
        best = int(cost.argmin())
        if cost[best] == np.inf:
            return
        yield self[best]
        for place in np.argsort(cost, kind="stable")[1:]:
            if cost[place] == np.inf:
                return
            yield self[int(place)]

    def check_invariants(self, open_gpus: Sequence[GpuRecord]) -> None:
        """Each column is as its GPU is now. AssertionError is a bug of ours."""
        if self._source is None:
            return
        self.look(open_gpus, self._source)
        require(self._gpus == list(reversed(open_gpus)), "the columns are of other GPUs")
        for place, gpu in enumerate(self._gpus):
            figures = zip(self._table[:, place], _entries_of(gpu, self._source), strict=True)
            require(all(found in (figure, -np.inf) for found, figure in figures), f"the figures of {gpu.uuid} are old")


def _entries_of(gpu: GpuRecord, source: ColumnSource) -> tuple[float, ...]:
    """The table's column of a GPU."""
    free_pages = [gpu.adapters.free_pages.get(group, 0) for group in _LORA_GROUPS]
    return *free_pages, gpu.room if gpu.has_free_place else -inf, *source.figures_of(gpu)
