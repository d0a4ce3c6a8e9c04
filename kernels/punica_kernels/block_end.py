"""The end of a layer's block, as one operator: what it has computed joins the residual, which is normed."""

from typing import NamedTuple

from torch import Tensor


class BlockEnd(NamedTuple):
    """residual += x + delta in place, then out = rms_norm(residual).

    With ``added_weight``, residual += rms_norm(x + delta) by that weight, as behind the blocks of Gemma 2 and 3.
    """

    #: [num_rows, width], overwritten; it may be x.
    out: Tensor
    #: [num_rows, width], of out's dtype, or float32 split-K partial sums of it, [splits, num_rows, width].
    x: Tensor
    #: [num_rows, width], of out's dtype, changed in place.
    residual: Tensor
    #: [width], float32 or of out's dtype: of the norm of the sum.
    weight: Tensor
    eps: float
    #: [num_rows, width], of out's dtype or float32: what LoRA adds; None adds nothing.
    delta: Tensor | None = None
    #: [width], as ``weight``: of the norm of what is added; None norms nothing.
    added_weight: Tensor | None = None
