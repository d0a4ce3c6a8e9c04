"""A GPU's working set as one batch of decodes, in the figures that a performance model asks for."""

from typing import NamedTuple

from punica_scheduler.core.gpu import GpuRecord
from punica_serve.performance.lora_load import LoraLoad

#: A page of a request's KvCache is half full, on average.
_HALF = 0.5


class DecodeBatch(NamedTuple):
    num_rows: int
    #: Keys of all rows together, to half a page a row.
    num_context_tokens: float
    lora: LoraLoad


def decode_batch(gpu: GpuRecord) -> DecodeBatch:
    """The batch of a step in which every request of the working set decodes. Costs the same for any batch size."""
    num_rows = len(gpu.working_set)
    num_context_tokens = (gpu.num_pages_ahead - _HALF * num_rows) * gpu.info.page_size
    return DecodeBatch(num_rows, num_context_tokens, gpu.load_sums.lora.load)
