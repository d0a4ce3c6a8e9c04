"""The cluster's last ten minutes, one row a second, for viewers who have just connected."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, repeat
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from punica_scheduler.core.scheduler import ClusterSample
from punica_scheduler.telemetry.step_stats import StepFigures
from punica_serve.protocol import ClusterHistory, GpuHistory, RecentFigures, encode_history

#: Ten minutes. For a thousand GPUs that is some 40 MB.
MAX_SAMPLES = 600
_INTERVAL_NS = 1_000_000_000

Value = TypeVar("Value")


class _Row(Struct, frozen=True):
    """One moment, and how it was measured."""

    at_ns: int
    #: Its ``gpu_uuids`` are one tuple for all rows between two changes of the fleet.
    sample: ClusterSample
    batch_size_means: tuple[float, ...]
    batch_size_maxima: tuple[int, ...]
    recent: RecentFigures


class History:
    """Rows at equal intervals, at most MAX_SAMPLES."""

    def __init__(self) -> None:
        self._rows: deque[_Row] = deque(maxlen=MAX_SAMPLES)
        #: All rows, encoded; None after a new row.
        self._encoded: msgspec.Raw | None = None

    def is_due(self, now_ns: int) -> bool:
        """Adds a row at the first look in each second, so that no second is left out."""
        return not self._rows or now_ns // _INTERVAL_NS > self._rows[-1].at_ns // _INTERVAL_NS

    def add(self, sample: ClusterSample, steps: Sequence[StepFigures], recent: RecentFigures, now_ns: int) -> None:
        """Appends a row; ``steps`` has an entry for each GPU of the sample."""
        self._encoded = None
        if self._rows and self._rows[-1].sample.gpu_uuids == sample.gpu_uuids:
            before = self._rows[-1].sample
            sample = replace(sample, gpu_uuids=before.gpu_uuids, gpu_names=before.gpu_names)
        means = tuple([figures.batch_size_mean for figures in steps])
        maxima = tuple([figures.batch_size_max for figures in steps])
        self._rows.append(_Row(now_ns, sample, means, maxima, recent))

    def encoded(self) -> msgspec.Raw:
        """All rows, encoded at most once for each new row: for a thousand GPUs they have a million numbers."""
        if self._encoded is None:
            self._encoded = encode_history(self._columns())
        return self._encoded

    def _columns(self) -> ClusterHistory:
        rows = self._rows
        return ClusterHistory(
            at_ns=tuple(row.at_ns for row in rows),
            arrived=tuple(row.sample.num_arrived for row in rows),
            tokens=tuple(row.sample.num_tokens for row in rows),
            queue_length=tuple(row.sample.queue_length for row in rows),
            first_token_s=tuple(row.recent.first_token_s for row in rows),
            inter_token_s=tuple(row.recent.inter_token_s for row in rows),
            gpus=_by_gpu(rows),
        )


def _by_gpu(rows: Sequence[_Row]) -> dict[str, GpuHistory]:
    runs = [list(run) for _, run in groupby(rows, key=lambda row: id(row.sample.gpu_uuids))]
    samples = [run[0].sample for run in runs]
    uuids = [sample.gpu_uuids for sample in samples]
    names = {uuid: name for sample in samples for uuid, name in zip(sample.gpu_uuids, sample.gpu_names, strict=True)}
    means = _columns_of(zip(uuids, ([row.batch_size_means for row in run] for run in runs), strict=True))
    maxima = _columns_of(zip(uuids, ([row.batch_size_maxima for row in run] for run in runs), strict=True))
    pages = _columns_of(zip(uuids, ([row.sample.used_kv_pages for row in run] for run in runs), strict=True))
    return {
        uuid: GpuHistory(tuple(means[uuid]), tuple(maxima[uuid]), tuple(pages[uuid]), names[uuid])
        for uuid in sorted(names)
    }


def _columns_of(
    runs: Iterable[tuple[tuple[str, ...], list[tuple[Value, ...]]]],
) -> dict[str, list[Value | None]]:
    """Runs of rows, each with what its columns are called. A GPU that was not there all the time has gaps."""
    columns: dict[str, list[Value | None]] = {}
    num_rows = 0
    for uuids, rows in runs:
        for uuid, part in zip(uuids, zip(*rows, strict=True), strict=True):
            column = columns.setdefault(uuid, [])
            column += repeat(None, num_rows - len(column))
            column += part
        num_rows += len(rows)
    for column in columns.values():
        column += repeat(None, num_rows - len(column))
    return columns
