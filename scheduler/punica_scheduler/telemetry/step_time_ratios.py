"""Compares the time that steps take with the time that the performance profile predicts, for each GPU.

A placement by cost trusts the profile, so people have to hear of one that turns out wrong. Only steps of decodes alone
are compared, because the sums of a working set describe exactly their batch.
"""

from collections.abc import Callable
from math import exp, log

from punica_scheduler.core.decode_batch import DecodeBatch
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import StepReport

#: One step in so many is compared: the report of another costs a division.
EVERY = 20
#: Before so many comparisons a GPU has no ratio: a worker's first steps are slow.
MIN_SAMPLES = 16
#: The weight of a new sample, once there are as many as its inverse.
_WEIGHT = 1 / 32
#: A ratio beyond this share of 1 is warned of. It is warned of again after it has been within the smaller share, so
#: that noise at the border does not fill the log.
_BEYOND, _WITHIN = 0.2, 0.15


class _Gpu:
    __slots__ = ("is_warned", "log_ratio", "num_samples")

    def __init__(self) -> None:
        self.num_samples = 0
        #: The moving mean of the ratio's logarithm. In a plain mean, one step that hung would show for minutes.
        self.log_ratio = 0.0
        self.is_warned = False

    @property
    def ratio(self) -> float:
        return exp(self.log_ratio)

    def add(self, ratio: float) -> None:
        self.num_samples += 1
        self.log_ratio += (log(ratio) - self.log_ratio) * max(_WEIGHT, 1 / self.num_samples)


class StepTimeRatios:
    """Measured over predicted time, a moving mean for each GPU.

    ``batch_of`` tells the decodes that a GPU runs now, by its UUID. ``warn`` is called with the UUID and the ratio when
    a GPU's ratio leaves 0.8 to 1.2.
    """

    def __init__(
        self,
        model: StepTimeModel,
        batch_of: Callable[[str], DecodeBatch | None],
        warn: Callable[[str, float], object],
    ) -> None:
        self._model = model
        self._batch_of = batch_of
        self._warn = warn
        self._gpus: dict[str, _Gpu] = {}

    def observe(self, report: StepReport) -> None:
        """Compares the report's step, if its turn has come and the working set is its batch."""
        if report.step % EVERY or not report.token_ids or report.num_prefill_tokens or report.finished:
            return
        batch = self._batch_of(report.gpu_uuid)
        if batch is None or batch.num_rows != report.batch_size or report.duration_s <= 0:
            return
        predicted_s = self._model.step_s(0, batch.num_rows, round(batch.num_context_tokens), batch.lora)
        if predicted_s > 0:
            self._add(report.gpu_uuid, report.duration_s / predicted_s)

    def forget(self, uuid: str) -> None:
        """The GPU has left. Its worker may come back with another speed."""
        self._gpus.pop(uuid, None)

    def ratio(self, uuid: str) -> float | None:
        """None until enough steps of the GPU were compared."""
        gpu = self._gpus.get(uuid)
        return None if gpu is None or gpu.num_samples < MIN_SAMPLES else round(gpu.ratio, 3)

    def _add(self, uuid: str, ratio: float) -> None:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            gpu = self._gpus[uuid] = _Gpu()
        gpu.add(ratio)
        if gpu.num_samples < MIN_SAMPLES:
            return
        error = abs(gpu.ratio - 1)
        if error > _BEYOND and not gpu.is_warned:
            gpu.is_warned = True
            self._warn(uuid, gpu.ratio)
        elif error <= _WITHIN:
            gpu.is_warned = False
