"""``StepTimeModel`` for the batches of many GPUs at once."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns
from punica_serve.performance.lora_load import AdapterSize, LoraLoad
from punica_serve.performance.lora_times import DistinctLora, LoraTimes, PaddedLora
from punica_serve.performance.piecewise_linear import PiecewiseLinear
from punica_serve.performance.step_time import StepTimeModel


class StepTimeColumns:
    """The same times as the model's, an entry for each GPU."""

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self._lora_s = _lora_column_seconds(model.profile.lora)
        self._overhead_s = model.profile.step_overhead_ms / 1e3
        contexts = model.profile.decode.context
        self._breaks = np.array(contexts[1:-1], dtype=np.float64)
        #: For each batch size, and each piece of its times by context: seconds at 0 and for each token.
        self._pieces: npt.NDArray[np.float64] = np.zeros((1, max(1, len(contexts) - 1), 2))

    def decode_s(self, batches: BatchColumns) -> Column:
        """Seconds of a step of each batch; 0 for an empty one."""
        base, slope, mean = self._decode_pieces(batches)
        return np.where(batches.num_rows > 0, base + slope * mean + self._lora_s(batches.lora) + self._overhead_s, 0.0)

    def mixed_s(self, batches: BatchColumns, num_prefill_tokens: float) -> Column:
        """Seconds of a step of each batch, which is not empty, and a prefill beside it, whose LoRA is not counted."""
        base, slope, mean = self._decode_pieces(batches)
        context_s = slope * mean
        mixed_s = self._model.prefill.column(num_prefill_tokens + batches.num_rows) + context_s
        return np.maximum(base + context_s, mixed_s) + self._lora_s(batches.lora) + self._overhead_s

    def prefill_s(self, num_tokens: int, size: AdapterSize | None) -> float:
        """Seconds of a step of one prefill alone."""
        return self._model.step_s(num_tokens, 0, 0, LoraLoad().with_row(size) if size else LoraLoad())

    def _decode_pieces(self, batches: BatchColumns) -> tuple[Column, Column, Column]:
        """The linear piece of each batch's time by mean context, and that context."""
        num_rows = batches.num_rows.astype(np.intp)
        largest = int(num_rows.max(initial=0))
        if largest >= len(self._pieces):
            self._extend(largest)
        mean = batches.num_context_tokens / np.maximum(num_rows, 1)
        pieces = self._pieces[num_rows, np.searchsorted(self._breaks, mean, side="right")]
        return pieces[:, 0], pieces[:, 1], mean

    def _extend(self, largest: int) -> None:
        pieces = np.zeros((2 * largest + 1, *self._pieces.shape[1:]))
        for num_rows in range(1, len(pieces)):
            pieces[num_rows] = self._model.decodes_of(num_rows).pieces
        self._pieces = pieces


LoraColumnSeconds = Callable[[LoraColumns], Column]


def _lora_column_seconds(times: LoraTimes) -> LoraColumnSeconds:
    """``step_time.lora_seconds`` for columns."""
    if isinstance(times, DistinctLora):
        by_pages, row_s = PiecewiseLinear(times.pages, times.ms), times.row_ms / 1e3
        return lambda lora: np.where(lora.num_rows > 0, by_pages.column(lora.num_pages) + row_s * lora.num_rows, 0.0)
    rank_s = times.rank_ms / 1e3
    if isinstance(times, PaddedLora):
        return lambda lora: rank_s * lora.num_rows * lora.max_rank
    return lambda lora: rank_s * lora.sum_ranks
