"""Packs an adapter from its file's bytes: all at once, or piece by piece while they come."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.adapters.adapter import STORAGE_DTYPES, Adapter, LayerRun, TensorDtype, TensorPlace
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.packing import PackedAdapter, packed_views, slice_of
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import LoraGroup

_TORCH_DTYPES: dict[TensorDtype, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Rows = TypeVar("Rows", Tensor, npt.NDArray[Any])

#: Layers and columns of a group's B, and the factor that is still to be applied to them.
_Unscaled = list[tuple[slice, slice, float]]


def pack_adapter(adapter: Adapter, model: ModelConfig, dtype: torch.dtype, memory: Tensor) -> PackedAdapter:
    """Lays a whole adapter out in pages: see AdapterPacker. Raises as ``finish`` does."""
    packer = AdapterPacker(adapter, model, dtype, memory)
    packer.pack(len(adapter.file))
    return packer.finish()


class AdapterPacker:
    """Packs an adapter whose file may still be coming, from front to back."""

    def __init__(self, adapter: Adapter, model: ModelConfig, dtype: torch.dtype, memory: Tensor) -> None:
        """Packs into pages of ``dtype`` in ``memory``, uint8 [packed_num_bytes], which is overwritten.

        ``model`` may be a rank's share; the adapter is the whole one. No bytes of its file are read yet.
        """
        self._adapter = adapter
        self._model = model
        self._dtype = dtype
        self._packed = packed_views(memory, adapter.ref.ranks, model, dtype)
        if not _covers(adapter, model):
            memory.zero_()
        self._has_begun = False
        self._raw = {group: (_raw(pages.a), _raw(pages.b)) for group, pages in self._packed.groups.items()}
        self._runs = [_PackedRun(run, *_place_in_group(run.module, model)) for run in adapter.layout.runs]

    def pack(self, num_bytes: int) -> None:
        """Packs the layers that lie in the file's first ``num_bytes``, and were not packed before.

        Scaling is folded into B in float32, before the one rounding.
        """
        unscaled: dict[LoraGroup, _Unscaled] = {group: [] for group in self._packed.groups}
        for run in self._runs:
            if new := run.take(num_bytes):
                unscaled[run.group] += self._write(run, new)
        is_all = not self._has_begun and num_bytes == len(self._adapter.file)
        self._has_begun = True
        for group, parts in unscaled.items():
            _scale(self._packed.groups[group].b, parts, is_all=is_all)

    def finish(self) -> PackedAdapter:
        """The pages, once all of the file was packed.

        Raises AdapterRejected, naming the projections, if a scaled weight is too large for the pages' dtype.
        """
        for group in _groups_that_grew(self._adapter, self._model, self._dtype):
            pages = self._packed.groups[group]
            if not (_is_finite(pages.a) and _is_finite(pages.b)):
                modules = ", ".join(projection.name for projection in self._model.spec.group(group).projections)
                raise AdapterRejected(f"weights of {modules}, scaled, are too large for {self._dtype}", param=group)
        return self._packed

    def _write(self, packed: "_PackedRun", new: range) -> _Unscaled:
        """Copies layers of a run, through numpy if the dtype stays. Returns what is to be scaled.

        Every torch operation, even a view, releases the GIL and must get it back from the step loop; in numpy only the
        copies do, one for each run.
        """
        run, first, scaling = packed.run, packed.run.first, packed.run.first.scaling
        pages, raw = self._packed.groups[packed.group], self._raw[packed.group]
        layers = slice_of(new, run.first_layer)
        a = _layers_of(first.a, run.num_layers, run.a_stride_bytes, self._adapter.file)[slice_of(new)]
        a = a[:, :, packed.inputs]
        b = _layers_of(first.b, run.num_layers, run.b_stride_bytes, self._adapter.file)[slice_of(new)].swapaxes(1, 2)
        if _TORCH_DTYPES[first.a.dtype] == self._dtype:
            _write_rows(raw[0][:, layers, packed.number], a)
        else:
            _write_rows(pages.a[:, layers, packed.number], _to_float32(a, first.a.dtype))
        is_kept = _TORCH_DTYPES[first.b.dtype] == self._dtype
        for part, columns in packed.outputs:
            if is_kept:
                _write_rows(raw[1][:, layers, :, columns], b[:, :, part])
            else:
                _write_rows(pages.b[:, layers, :, columns], _to_float32(b[:, :, part], first.b.dtype) * scaling)
        return [(layers, columns, scaling if is_kept else 1.0) for _, columns in packed.outputs]


@dataclass(slots=True)
class _PackedRun:
    """A run of layers, of which the first ``num_packed`` are packed."""

    run: LayerRun
    group: LoraGroup
    #: Its module's number in the group.
    number: int
    #: The inputs that are read.
    inputs: slice
    #: The outputs that are computed, each part with its columns of the group's B.
    outputs: list[tuple[slice, slice]]
    num_packed: int = 0

    def take(self, num_bytes: int) -> range:
        """The layers that have come since, counted from the run's first. They count as packed from now on."""
        new = range(self.num_packed, self.run.num_layers_in(num_bytes))
        self.num_packed += len(new)
        return new


def _covers(adapter: Adapter, model: ModelConfig) -> bool:
    """Whether the adapter fills every row of its pages, as most do: then they need not be cleared first."""
    num_rows = sum(place.a.shape[0] for place in adapter.layout.places.values())
    pages = pages_needed(adapter.ref.ranks)
    return num_rows == sum(
        num_pages * LORA_PAGE_RANKS * len(model.spec.group(name).projections) * model.spec.layers_of(name)
        for name, num_pages in pages.items()
    )


def _scale(b: Tensor, parts: _Unscaled, *, is_all: bool) -> None:
    """Multiplies (layers, columns) of B by their scalings: in one operation if they are equal, and all of B that is
    not zero.

    Torch multiplies half precision in float32 and rounds once.
    """
    scalings = {scaling for _, _, scaling in parts}
    if is_all and len(scalings) == 1:
        parts = [(slice(None), slice(None), scalings.pop())]
    for layers, columns, scaling in parts:
        if scaling != 1.0:
            b[:, layers, :, columns].mul_(scaling)


def _place_in_group(module: str, model: ModelConfig) -> tuple[LoraGroup, int, slice, list[tuple[slice, slice]]]:
    """See _PackedRun."""
    group, number = model.spec.find(module)
    projection, start = group.projections[number], group.out_offsets[number]
    outputs = [(slice_of(part), slice_of(place, start)) for part, place in projection.output_places]
    return group.name, number, slice_of(group.lora_inputs), outputs


def _write_rows(pages: Rows, rows: Rows) -> None:
    """rows [layers, r, features] -> the first r rank rows of pages [pages, layers, 8, features]."""
    num_layers, rank, num_features = rows.shape
    num_whole, num_rest = divmod(rank, LORA_PAGE_RANKS)
    if num_whole:
        whole = rows[:, : rank - num_rest].reshape(num_layers, num_whole, LORA_PAGE_RANKS, num_features)
        pages[:num_whole] = whole.swapaxes(0, 1)
    if num_rest:
        pages[num_whole, :, :num_rest] = rows[:, rank - num_rest :]


def _layers_of(first: TensorPlace, num_layers: int, stride_bytes: int, file: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """[layers, *shape]: a view of the file, aligned or not."""
    storage, (rows, columns) = STORAGE_DTYPES[first.dtype], first.shape
    strides = (stride_bytes, columns * storage.itemsize, storage.itemsize)
    return np.ndarray((num_layers, rows, columns), storage, file.data, first.begin, strides)


def _raw(tensor: Tensor) -> npt.NDArray[Any]:
    """The same memory as a numpy array of STORAGE_DTYPES."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()


def _to_float32(array: npt.NDArray[Any], dtype: TensorDtype) -> Tensor:
    aligned = torch.from_numpy(np.require(array, requirements="A"))
    return aligned.view(_TORCH_DTYPES[dtype]).float()


def _groups_that_grew(adapter: Adapter, model: ModelConfig, dtype: torch.dtype) -> set[LoraGroup]:
    """The groups whose values may be too large for ``dtype``. Registration saw that all values in the file are finite,
    and a look at all of them takes a third of the time of packing.
    """
    grew: set[LoraGroup] = set()
    for run in adapter.layout.runs:
        kept = {_TORCH_DTYPES[place.dtype] for place in (run.first.a, run.first.b)} == {dtype}
        if not kept or abs(run.first.scaling) > 1.0:
            grew.add(model.spec.find(run.module)[0].name)
    return grew


def _is_finite(tensor: Tensor) -> bool:
    """Whether all values are finite, without a temporary tensor: NaN and infinity show in the extremes."""
    low, high = tensor.aminmax()
    return bool(low.isfinite() & high.isfinite())
