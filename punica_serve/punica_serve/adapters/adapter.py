"""An adapter in host memory."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from punica_serve.protocol import AdapterRef

TensorDtype = Literal["F32", "F16", "BF16"]

#: Numpy's type for the elements of each dtype. Numpy has no bfloat16, so its bits are held as integers.
STORAGE_DTYPES: dict[TensorDtype, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}

_BF16_EXPONENT = np.uint16(0x7F80)


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A tensor in host memory, usually a view of the file's bytes. The array is contiguous and aligned."""

    dtype: TensorDtype
    #: Has the type STORAGE_DTYPES[dtype].
    array: npt.NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def float32(self) -> npt.NDArray[np.float32]:
        """The values as float32, which represents them exactly. A copy, unless they already are float32."""
        if self.dtype == "BF16":
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(np.float32, copy=False)

    def is_finite(self) -> bool:
        """Whether there is no NaN and no infinity."""
        if self.dtype == "BF16":
            return not bool(((self.array & _BF16_EXPONENT) == _BF16_EXPONENT).any())
        return bool(np.isfinite(self.array).all())


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor's position in a file: bytes [begin, end)."""

    dtype: TensorDtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def of(self, file: npt.NDArray[np.uint8]) -> HostTensor:
        """The tensor in the bytes of a whole file: a view if they are aligned."""
        view: npt.NDArray[Any] = file[self.begin : self.end].view(STORAGE_DTYPES[self.dtype]).reshape(self.shape)
        return HostTensor(self.dtype, np.require(view, requirements="A"))


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
class PairPlace:
    """A LoraPair's position in a file."""

    a: TensorPlace
    b: TensorPlace
    scaling: float

    def of(self, file: npt.NDArray[np.uint8]) -> LoraPair:
        return LoraPair(self.a.of(file), self.b.of(file), self.scaling)


@dataclass(frozen=True, slots=True)
class LayerRun:
    """Consecutive layers whose pairs of one module have the same shape and are equally spaced in the file."""

    module: str
    first_layer: int
    num_layers: int
    #: The first layer's pair.
    first: PairPlace
    #: Distance from one layer's A to the next one's.
    a_stride_bytes: int
    b_stride_bytes: int

    def num_layers_in(self, num_bytes: int) -> int:
        """How many of its layers lie in the file's first ``num_bytes``."""
        a = (num_bytes - self.first.a.end) // self.a_stride_bytes
        b = (num_bytes - self.first.b.end) // self.b_stride_bytes
        return max(0, min(a, b, self.num_layers - 1) + 1)


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """Positions of all tensors in an adapter's file. Equal for all adapters of one configuration, so it is computed
    once.
    """

    #: Keyed by (layer, module), such as (0, "q_proj"), in the order in which a model runs them.
    places: dict[tuple[int, str], PairPlace]
    #: The same places, grouped for copying many layers at once.
    runs: tuple[LayerRun, ...]
    #: The highest rank of each module.
    ranks: dict[str, int]

    @classmethod
    def of(cls, places: dict[tuple[int, str], PairPlace]) -> "AdapterLayout":
        by_module: dict[str, list[LayerRun]] = {}
        ranks: dict[str, int] = {}
        for (layer, module), place in sorted(places.items()):
            runs = by_module.setdefault(module, [])
            longer = _continued(runs[-1], layer, place) if runs else None
            if longer is not None:
                runs[-1] = longer
            else:
                runs.append(LayerRun(module, layer, 1, place, place.a.end - place.a.begin, place.b.end - place.b.begin))
            ranks[module] = max(place.a.shape[0], ranks.get(module, 0))
        return cls(places, tuple(run for runs in by_module.values() for run in runs), ranks)


@dataclass(frozen=True, slots=True)
class Adapter:
    """All the updates of one adapter. Layers and modules without an update are absent."""

    ref: AdapterRef
    layout: AdapterLayout
    #: The bytes of the weights file. In a reused buffer they are valid until the next adapter is read.
    file: npt.NDArray[np.uint8]

    @property
    def pairs(self) -> dict[tuple[int, str], LoraPair]:
        """The updates by (layer, module), in the order in which a model runs them. Built anew by each call."""
        return {key: place.of(self.file) for key, place in self.layout.places.items()}


def _continued(run: LayerRun, layer: int, place: PairPlace) -> LayerRun | None:
    """The run extended by one layer; None if the layer does not continue it."""
    first, count = run.first, run.num_layers
    form = (place.a.dtype, place.a.shape, place.b.dtype, place.b.shape, place.scaling)
    if form != (first.a.dtype, first.a.shape, first.b.dtype, first.b.shape, first.scaling):
        return None
    a_stride, a_rest = divmod(place.a.begin - first.a.begin, count)
    b_stride, b_rest = divmod(place.b.begin - first.b.begin, count)
    is_regular = count == 1 or (a_stride, b_stride) == (run.a_stride_bytes, run.b_stride_bytes)
    if layer != run.first_layer + count or not is_regular or a_rest or b_rest or min(a_stride, b_stride) <= 0:
        return None
    return replace(run, num_layers=count + 1, a_stride_bytes=a_stride, b_stride_bytes=b_stride)
