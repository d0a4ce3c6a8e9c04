"""Batch sizes of each GPU over the steps of the last second.

A step takes some milliseconds and viewers look once a second, so the newest step alone would hide whatever ended just
before. Steps are counted in slices from tick to tick; the last second is the newest slices.
"""

from collections import deque
from collections.abc import Collection
from typing import NamedTuple

from punica_scheduler.telemetry.step_tokens import StepTokens
from punica_serve.protocol import StepReport

_SLICE_NS = 200_000_000
_SLICES_PER_S = 5
#: The slice that grows comes on top, so viewers that look once a second miss no step.
_NUM_SLICES = _SLICES_PER_S + 1


class StepFigures(NamedTuple):
    """Requests of a step, over the steps of the last second: mean and most; and the most distinct adapters of one."""

    batch_size_mean: float = 0.0
    batch_size_max: int = 0
    num_adapters: int = 0


_NO_STEPS = StepFigures()


class _Slice:
    """Sums over the steps of a slice."""

    __slots__ = ("max_adapters", "max_rows", "num_rows", "num_steps")

    def __init__(self) -> None:
        self.num_steps = self.num_rows = self.max_rows = self.max_adapters = 0


class _Gpu:
    __slots__ = ("newest", "slices", "step")

    def __init__(self) -> None:
        #: Number of the newest step; a report that follows commands alone repeats it.
        self.step = -1
        self.newest = _Slice()
        #: Oldest first, ``newest`` last.
        self.slices = deque([self.newest], maxlen=_NUM_SLICES)


class StepStats:
    """Call ``observe`` for each step report, and ``advance`` regularly."""

    def __init__(self) -> None:
        #: By GPU UUID: those that ran a step within the last second.
        self._gpus: dict[str, _Gpu] = {}
        self._began_ns = 0
        #: All steps that were counted, however long ago.
        self.tokens = StepTokens()

    def observe(self, report: StepReport) -> None:
        """Counts the report's step, unless it has none or it was counted."""
        num_rows = report.batch_size
        if not num_rows:
            return
        gpu = self._gpus.get(report.gpu_uuid)
        if gpu is None:
            gpu = self._gpus[report.gpu_uuid] = _Gpu()
        if gpu.step == report.step:
            return
        gpu.step = report.step
        self.tokens.observe(report)
        newest = gpu.newest
        newest.num_steps += 1
        newest.num_rows += num_rows
        if num_rows > newest.max_rows:
            newest.max_rows = num_rows
        if report.num_adapters > newest.max_adapters:
            newest.max_adapters = report.num_adapters

    def advance(self, now_ns: int) -> None:
        """Begins a new slice when it is due, and forgets GPUs that ran nothing in all of theirs."""
        num_new = (now_ns - self._began_ns) // _SLICE_NS
        if num_new < 1:
            return
        self._began_ns = now_ns
        idle = []
        for uuid, gpu in self._gpus.items():
            for _ in range(min(num_new, _NUM_SLICES)):
                gpu.newest = _Slice()
                gpu.slices.append(gpu.newest)
            if not any(part.num_steps for part in gpu.slices):
                idle.append(uuid)
        for uuid in idle:
            del self._gpus[uuid]

    def figures(self, uuid: str) -> StepFigures:
        """The GPU's last second, and up to 0.2 s more; zeros if it ran no step."""
        gpu = self._gpus.get(uuid)
        return _figures(gpu.slices) if gpu else _NO_STEPS

    def second(self, uuid: str) -> StepFigures:
        """The GPU's last second alone, for calls once a second just before ``advance``: no step counts twice."""
        gpu = self._gpus.get(uuid)
        return _figures(list(gpu.slices)[-_SLICES_PER_S:]) if gpu else _NO_STEPS


def _figures(slices: Collection[_Slice]) -> StepFigures:
    num_steps = sum([part.num_steps for part in slices])
    if not num_steps:
        return _NO_STEPS
    return StepFigures(
        round(sum([part.num_rows for part in slices]) / num_steps, 2),
        max([part.max_rows for part in slices]),
        max([part.max_adapters for part in slices]),
    )
