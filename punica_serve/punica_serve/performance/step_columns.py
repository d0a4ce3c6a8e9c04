"""``StepTimeModel`` for the batches of many GPUs at once.

Everything that depends on whole numbers alone, batch sizes and rank pages, is looked up in tables that grow as needed:
a placement waits for these passes, and a look-up costs a third of a search in breaks. Whether a table is long enough
is told by the look-up itself.
"""

import numpy as np

from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns
from punica_serve.performance.lora_load import NO_ADAPTER, NO_LORA, AdapterSize, LoraLoad
from punica_serve.performance.lora_times import HIGHEST_RANK_ROWS, MAX_FUSED_ROWS, DistinctLora, PaddedLora
from punica_serve.performance.piecewise_linear import PiecewiseLinear
from punica_serve.performance.step_time import StepTimeModel


class StepTimeColumns:
    """The same times as the model's, an entry for each GPU."""

    def __init__(self, model: StepTimeModel) -> None:
        self._model = model
        self.step_s = model.step_s
        #: Whether prefills run in steps of their own.
        self.prefills_apart = model.profile.prefills == "apart"
        self._overhead_s = model.profile.step_overhead_ms / 1e3
        contexts = model.profile.decode.context
        self._breaks = np.array(contexts[1:-1], dtype=np.float64)
        self._num_pieces = max(1, len(contexts) - 1)
        #: For each batch size, and in it each piece of its times by context: seconds at 0 and for each token.
        self._base: Column = np.zeros(self._num_pieces)
        self._slope: Column = np.zeros(self._num_pieces)
        #: For each number of rank pages, seconds; only for `DistinctLora`.
        self._pages_s: Column = np.zeros(1)

    def decode_s(self, batches: BatchColumns) -> Column:
        """Seconds of a step of each batch; 0 for an empty one."""
        return self._decodes(batches) + self._lora_s(batches.lora)

    def prefill_s(self, num_tokens: float, size: AdapterSize) -> float:
        """Seconds of a step of one prefill alone; NO_ADAPTER runs the base model."""
        return self._model.step_s(num_tokens, 0, 0, NO_LORA if size is NO_ADAPTER else LoraLoad().with_row(size))

    def queue_s(self, num_tokens: Column) -> Column:
        """Seconds of one step of prefills of so many tokens together, without LoRA; 0 for none."""
        prefill_s: Column = np.where(num_tokens > 0, self._model.prefill.column(num_tokens) + self._overhead_s, 0.0)
        return prefill_s

    def _decodes(self, batches: BatchColumns) -> Column:
        """Seconds of each batch's step without LoRA."""
        mean = batches.num_context_tokens / np.maximum(batches.num_rows, 1.0)
        place = batches.num_rows.astype(np.intp) * self._num_pieces
        if len(self._breaks):
            place += self._breaks.searchsorted(mean, "right")
        try:
            seconds: Column = self._base.take(place) + self._slope.take(place) * mean
        except IndexError:
            self._extend(2 * int(batches.num_rows.max()))
            return self._decodes(batches)
        return seconds

    def _extend(self, largest: int) -> None:
        """Makes the tables for batches of up to so many rows."""
        pieces = [self._model.decodes_of(num_rows).pieces for num_rows in range(1, largest + 1)]
        none = np.zeros((self._num_pieces, 2))
        base_and_slope = np.concatenate([none, *pieces])
        self._base = base_and_slope[:, 0] + self._overhead_s * (np.arange(len(base_and_slope)) >= self._num_pieces)
        self._slope = base_and_slope[:, 1].copy()

    def _lora_s(self, lora: LoraColumns) -> Column:
        """Seconds that the adapters of each batch add."""
        times = self._model.profile.lora
        if isinstance(times, DistinctLora):
            return self._by_pages(times, lora.num_pages) + _rows_s(times, lora)
        if isinstance(times, PaddedLora):
            return times.rank_ms / 1e3 * lora.num_rows * lora.max_rank
        return times.rank_ms / 1e3 * lora.sum_ranks

    def _by_pages(self, times: DistinctLora, num_pages: Column) -> Column:
        places = num_pages.astype(np.intp)
        try:
            return self._pages_s.take(places)
        except IndexError:
            self._pages_s = PiecewiseLinear(times.pages, times.ms).column(np.arange(2.0 * places.max() + 1))
            self._pages_s[0] = 0.0
            return self._pages_s.take(places)


def _rows_s(times: DistinctLora, lora: LoraColumns) -> Column:
    """Seconds of all but the rank pages. Terms that a profile does without cost a placement nothing."""
    seconds: Column = times.row_ms / 1e3 * lora.num_rows
    if times.rank_ms:
        seconds += times.rank_ms / 1e3 * lora.sum_ranks
    if times.highest_rank_ms:
        share_s = times.highest_rank_ms / HIGHEST_RANK_ROWS / 1e3
        seconds += share_s * lora.max_rank * np.minimum(lora.num_rows, HIGHEST_RANK_ROWS)
    if times.large_batch_ms:
        seconds += times.large_batch_ms / 1e3 * (lora.num_rows > MAX_FUSED_ROWS)
    return seconds
