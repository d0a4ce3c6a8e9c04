"""The norms of queries and keys, which ``rotary_append`` applies on the way."""

from typing import NamedTuple

from torch import Tensor


class HeadNorms(NamedTuple):
    """Root mean square norms, each over one head, as Qwen 3 has them (Dehghani et al., 2023, norm queries and keys)."""

    #: [head_dim], any float dtype.
    q: Tensor
    k: Tensor
    #: Added to the mean square.
    eps: float
