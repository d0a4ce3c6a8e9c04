"""An adapter in host memory."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from punica_serve.protocol import AdapterRef

TensorDtype = Literal["F32", "F16", "BF16"]

#: How the elements of each dtype lie in memory. Numpy has no bfloat16: its bits are held as integers.
STORAGE_DTYPES: dict[TensorDtype, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

_BF16_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A tensor in host memory, most often a view of the file's bytes. The array is contiguous and aligned."""

    dtype: TensorDtype
    #: Of STORAGE_DTYPES[dtype].
    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def float32(self) -> npt.NDArray[np.float32]:
        """The values, which float32 represents exactly. A copy, unless they are float32 already."""
        if self.dtype == "BF16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32, copy=False)

    def is_finite(self) -> bool:
        """No NaN and no infinity."""
        if self.dtype == "BF16":
            return not bool(((self.array & _BF16_EXPONENT) == _BF16_EXPONENT).any())
        return bool(np.isfinite(self.array).all())


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The low-rank update of one linear module: y += scaling * (x @ a.T) @ b.T."""

    #: [r, in_features]
    a: HostTensor
    #: [out_features, r]
    b: HostTensor
    #: alpha / r, or alpha / sqrt(r) with rslora.
    scaling: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class Adapter:
    """All the updates of one adapter. Layers and modules that it does not touch are absent."""

    ref: AdapterRef
    #: Keyed by (layer, module), as in (0, "q_proj"); in the order in which a model runs them.
    pairs: dict[tuple[int, str], LoraPair]
