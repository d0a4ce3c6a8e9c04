"""The sums of all GPUs side by side, so that a placement computes a cost for each in one pass over arrays.

Only GPUs that changed since the last look are written again. A pass over a thousand costs what five searches in
``GpuIndex`` cost; a Python loop would cost fifty.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
import numpy.typing as npt

from punica_scheduler.core.decode_batch import decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_serve.errors.invariants import require
from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns


class GpuColumns:
    """One column for each open GPU, by UUID from the highest down, so that the first of equals has the highest."""

    def __init__(self) -> None:
        self._gpus: list[GpuRecord] = []
        self._place: dict[GpuRecord, int] = {}
        self._changed: set[GpuRecord] = set()
        self._is_stale = False
        self._table: npt.NDArray[np.float64] = np.zeros((10, 0))

    def __getitem__(self, place: int) -> GpuRecord:
        return self._gpus[place]

    def rebuild(self) -> None:
        """GPUs joined or left: everything is written anew at the next ``look``."""
        self._is_stale = True
        self._changed.clear()

    def changed(self, gpu: GpuRecord) -> None:
        """The GPU's sums may have changed."""
        self._changed.add(gpu)

    def look(self, open_gpus: Sequence[GpuRecord]) -> "GpuColumns":
        """Brings the columns up to date; ``open_gpus`` are all, by UUID from the lowest up."""
        if self._is_stale:
            self._gpus = list(reversed(open_gpus))
            self._place = {gpu: place for place, gpu in enumerate(self._gpus)}
            self._table = np.zeros((10, len(self._gpus)))
            self._changed, self._is_stale = set(self._gpus), False
        for gpu in self._changed:
            if (place := self._place.get(gpu)) is not None:
                self._table[:, place] = _sums(gpu)
        self._changed.clear()
        return self

    def check_invariants(self, open_gpus: Sequence[GpuRecord]) -> None:
        """Each column is as its GPU is now. AssertionError is a bug of ours."""
        self.look(open_gpus)
        require(self._gpus == list(reversed(open_gpus)), "the columns are of other GPUs")
        for place, gpu in enumerate(self._gpus):
            require(tuple(self._table[:, place]) == _sums(gpu), f"the sums of {gpu.uuid} are old")

    # -------------------------------------------------------------- columns, all of float64

    @property
    def batches(self) -> BatchColumns:
        """Each GPU's working set as one batch of decodes."""
        return _batches(self._table)

    @property
    def num_prefilling(self) -> Column:
        """Requests placed and not prefilled."""
        return self._row(6)

    @property
    def num_prefill_tokens(self) -> Column:
        """Their tokens."""
        return self._row(7)

    @property
    def tightest_s(self) -> Column:
        """The tightest promise of a time per token; infinite without one."""
        return self._row(8)

    @property
    def room(self) -> Column:
        """Tokens for which a request would find pages; 0 where the batch is full."""
        return self._row(9)

    def _row(self, index: int) -> Column:
        row: Column = self._table[index]
        return row


def batch_of(gpu: GpuRecord) -> BatchColumns:
    """One GPU's working set, as columns of one entry."""
    return _batches(np.array(_sums(gpu)).reshape(-1, 1))


def _batches(table: npt.NDArray[np.float64]) -> BatchColumns:
    """The first six rows of a table of sums."""
    return BatchColumns(table[0], table[1], LoraColumns(table[2], table[3], table[4], table[5]))


def _sums(gpu: GpuRecord) -> tuple[float, ...]:
    load, batch = gpu.load_sums, decode_batch(gpu)
    room = -inf if gpu.is_full else gpu.room
    return (
        batch.num_rows,
        batch.num_context_tokens,
        *batch.lora,
        load.num_prefilling,
        load.num_prefill_tokens,
        load.tightest_s,
        room,
    )
