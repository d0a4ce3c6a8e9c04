"""LoRA's part of a projection as its factors, for an operator that multiplies them itself."""

from typing import NamedTuple

from torch import Tensor

from punica_kernels.lora_table import LoraTable


class LowRankDelta(NamedTuple):
    """v B of each row (`punica_kernels.gpu.sgmv.expand`), on a GPU."""

    #: From ``shrink``, valid until the next one into the same workspace.
    v: Tensor
    #: [num_pages, 8, out]
    b_pages: Tensor
    table: LoraTable
