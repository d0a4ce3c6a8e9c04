"""Batches of many GPUs side by side, an entry for each GPU."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from punica_serve.performance.lora_load import NO_ADAPTER, AdapterSize

Column = npt.NDArray[np.float64]


class LoraColumns(NamedTuple):
    """The sums of ``LoraLoad``, as columns."""

    num_rows: Column
    sum_ranks: Column
    max_rank: Column
    num_pages: Column


class BatchColumns(NamedTuple):
    """Batches of decodes."""

    num_rows: Column
    #: Keys of all rows together.
    num_context_tokens: Column
    lora: LoraColumns

    def with_row(self, num_tokens: int, size: AdapterSize) -> "BatchColumns":
        """Returns the batches with one more row of so many tokens, of an adapter that the batch does not have."""
        lora = self.lora
        if size is not NO_ADAPTER:
            lora = LoraColumns(
                lora.num_rows + 1,
                lora.sum_ranks + size.rank,
                np.maximum(lora.max_rank, size.rank),
                lora.num_pages + size.num_pages,
            )
        return BatchColumns(self.num_rows + 1, self.num_context_tokens + num_tokens, lora)
