"""The memory that the captures of a start take on a GPU: where it runs out, it tells which settings would fit."""

import math
from collections.abc import Callable

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cuda.batch_bucket import BatchBuckets
from punica_serve.engine.memory.step_memory import StepBytes, step_bytes
from punica_serve.numbers import gib
from punica_serve.process.start_clock import Progress, no_progress


class CaptureMemory:
    """The free memory before each capture. The largest step comes first, so those behind it add little each."""

    def __init__(self, room: int, free: Callable[[], int], progress: Progress = no_progress) -> None:
        """``room``: bytes that were free before the first table was made; ``free``: those that are now."""
        self._room = room
        self._free_now = free
        self._progress = progress
        self._free: list[int] = []
        self._total = 0

    def begin(self, done: int, total: int) -> None:
        """The ``Progress`` of captures."""
        self._free.append(self._free_now())
        self._total = total
        self._progress(done, total)

    def told(self, taken: int) -> str:
        """How far a start came that failed, and all that it took: ``taken``, in bytes."""
        done = f"{max(0, len(self._free) - 1)} of {self._total} kinds of steps" if self._total else "their tables"
        return f"{done} took {gib(taken)} of the {gib(self._room)} that weights and pools leave, and more was needed"

    def needs(self, failed: EngineConfig, share: ModelConfig) -> StepBytes:
        """The bytes for steps of other settings, from those of the captures with the settings that ``failed``.

        A larger step takes what its tensors take more; each capture behind the first takes what those took on average.
        """
        planned, num_buckets = step_bytes(failed, share), len(BatchBuckets.of(failed).all)
        first, growth = self._first_and_growth()
        measured = first + growth * (self._total - 1)

        def needs(config: EngineConfig) -> int:
            num_fewer = self._total * (1 - len(BatchBuckets.of(config).all) / num_buckets)
            saved = planned - step_bytes(config, share) + growth * num_fewer
            return math.ceil(max(measured, self._room + 1) - saved)

        return needs

    def _first_and_growth(self) -> tuple[int, float]:
        """Bytes of the tables and the first capture, and of each other; where none was done, it takes all there is."""
        if len(self._free) < 2:
            return self._room, 0.0
        _, first, *others = self._free
        growth = max(0, first - others[-1]) / len(others) if others else 0.0
        return self._room - first, growth
