"""What the cluster was like in the last minutes, once a second: for those who begin to look now."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat

import msgspec

from punica_scheduler.gpu import GpuRecord
from punica_serve.protocol import ClusterHistory, GpuHistory, RecentFigures, encode_history

#: Ten minutes. Of a thousand GPUs that is some megabytes.
MAX_SAMPLES = 600
_INTERVAL_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Sample:
    at_ns: int
    num_arrived: int
    num_tokens: int
    queue_length: int
    recent: RecentFigures
    #: The rows of the next two.
    gpu_uuids: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    used_kv_pages: tuple[int, ...]


class History:
    """Samples at equal intervals; the oldest go."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=MAX_SAMPLES)
        #: Of the samples as they are.
        self._encoded: msgspec.Raw | None = None

    def is_due(self, now_ns: int) -> bool:
        return not self._samples or now_ns >= self._samples[-1].at_ns + _INTERVAL_NS

    def sample(
        self, gpus: Iterable[GpuRecord], counters: dict[str, int], queue_length: int, recent: RecentFigures, now_ns: int
    ) -> None:
        """Remembers how things are now."""
        self._encoded = None
        gpus = tuple(gpus)
        gpu_uuids = tuple(gpu.uuid for gpu in gpus)
        if self._samples and self._samples[-1].gpu_uuids == gpu_uuids:
            gpu_uuids = self._samples[-1].gpu_uuids  # one tuple for all samples of a fleet
        batch_sizes = tuple(gpu.batch_size for gpu in gpus)
        used_kv_pages = tuple(gpu.info.num_kv_pages - gpu.book.num_reported_free for gpu in gpus)
        num_arrived, num_tokens = counters["arrived"], counters["tokens"]
        self._samples.append(
            _Sample(now_ns, num_arrived, num_tokens, queue_length, recent, gpu_uuids, batch_sizes, used_kv_pages)
        )

    def encoded(self) -> msgspec.Raw:
        """All samples. Made once for each of them at most: of a thousand GPUs it is a million numbers."""
        if self._encoded is None:
            self._encoded = encode_history(self._columns())
        return self._encoded

    def _columns(self) -> ClusterHistory:
        samples = self._samples
        return ClusterHistory(
            at_ns=tuple(sample.at_ns for sample in samples),
            arrived=tuple(sample.num_arrived for sample in samples),
            tokens=tuple(sample.num_tokens for sample in samples),
            queue_length=tuple(sample.queue_length for sample in samples),
            first_token_s=tuple(sample.recent.first_token_s for sample in samples),
            inter_token_s=tuple(sample.recent.inter_token_s for sample in samples),
            gpus=_by_gpu(samples),
        )


def _by_gpu(samples: Sequence[_Sample]) -> dict[str, GpuHistory]:
    runs = [list(run) for _, run in groupby(samples, key=lambda sample: id(sample.gpu_uuids))]
    batch_sizes = _columns_of((run[0].gpu_uuids, [sample.batch_sizes for sample in run]) for run in runs)
    used_kv_pages = _columns_of((run[0].gpu_uuids, [sample.used_kv_pages for sample in run]) for run in runs)
    return {uuid: GpuHistory(tuple(batch_sizes[uuid]), tuple(used_kv_pages[uuid])) for uuid in sorted(batch_sizes)}


def _columns_of(runs: Iterable[tuple[tuple[str, ...], list[tuple[int, ...]]]]) -> dict[str, list[int | None]]:
    """Runs of rows, each with what its columns are called. A GPU that was not there all the time has gaps."""
    columns: dict[str, list[int | None]] = {}
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
