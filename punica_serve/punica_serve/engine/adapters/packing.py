"""An adapter's weights on the host, in the layout of the pool's pages.

A rank of a group packs its share. Where ranks divide a projection's outputs, they divide those of B and each has all of
A; where they divide its inputs, they divide those of A and each has all of B. So LoRA needs no exchange of its own. If
the ranks add up x A instead (`engine.divide_lora_from`), each has its inputs of that A too.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.adapters.adapter import STORAGE_DTYPES, Adapter, TensorDtype, TensorPlace
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected
from punica_serve.protocol import LoraGroup

_TORCH_DTYPES: dict[TensorDtype, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

Rows = TypeVar("Rows", Tensor, npt.NDArray[Any])

#: Alignment of the tensors of a packed adapter: enough for every dtype and copy engine.
_ALIGNMENT_BYTES = 256
#: Kinds of adapters, by their pages, whose places are kept: a cluster's adapters have few ranks and modules.
_MAX_KINDS = 64


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Pages of one group, shaped as in GroupPool. Missing modules, layers and rank rows are zero."""

    #: [pages, layers, slices, 8, inputs that A has here]
    a: Tensor
    #: [pages, layers, 8, out_features of all slices], scaled.
    b: Tensor


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """Views into one stretch of host memory."""

    groups: Mapping[LoraGroup, PackedGroup]

    @property
    def num_bytes(self) -> int:
        """Bytes of all pages, without the gaps between them."""
        return sum(part.nbytes for group in self.groups.values() for part in (group.a, group.b))


def packed_num_bytes(ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of a packed adapter with these ranks."""
    return sum(_aligned(place.num_bytes) for place in _places(ranks, model, dtype))


def packed_views(memory: Tensor, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype) -> PackedAdapter:
    """The pages of an adapter with these ranks as views of ``memory``, uint8 [packed_num_bytes]."""
    values = memory.view(dtype)

    def view(place: _Place) -> Tensor:
        """Packs by one operation of torch: each releases the GIL and must get it back from the step loop."""
        strides = accumulate(reversed(place.shape[1:]), operator.mul, initial=1)
        start = values.storage_offset() + place.start // dtype.itemsize
        return values.as_strided(place.shape, tuple(strides)[::-1], start)

    places = iter(_places(ranks, model, dtype))
    return PackedAdapter({a.group: PackedGroup(view(a), view(b)) for a, b in zip(places, places, strict=True)})


def packed_memory(packed: PackedAdapter, num_bytes: int) -> Tensor:
    """The memory, uint8 [num_bytes], that packed_views made ``packed`` of."""
    first = next(iter(packed.groups.values())).a.view(torch.uint8)
    return first.as_strided((num_bytes,), (1,))


def pack_adapter(adapter: Adapter, model: ModelConfig, dtype: torch.dtype, memory: Tensor) -> PackedAdapter:
    """Lays an adapter out in pages of ``dtype`` in ``memory``, uint8 [packed_num_bytes], which is overwritten.

    ``model`` may be a rank's share; the adapter is the whole one. Scaling is folded into B in float32, before the one
    rounding. Raises AdapterRejected, naming the projections, if a scaled weight is too large for ``dtype``.
    """
    packed = packed_views(memory, adapter.ref.ranks, model, dtype)
    if not _covers(adapter, model):
        memory.zero_()
    _write_runs(packed, adapter, model, dtype)
    for group in _groups_that_grew(adapter, model, dtype):
        pages = packed.groups[group]
        if not (_is_finite(pages.a) and _is_finite(pages.b)):
            modules = ", ".join(projection.name for projection in model.spec.group(group).projections)
            message = f"weights of {modules}, scaled, are too large for {dtype}"
            raise AdapterRejected(message, param=group)
    return packed


def pack_share(
    memory: Tensor, whole: PackedAdapter, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype
) -> PackedAdapter:
    """The share of a rank, whose ``model`` it is, of an adapter that is packed as a whole."""
    share = packed_views(memory, ranks, model, dtype)
    for name, pages in share.groups.items():
        group, starts = model.spec.group(name), model.whole.spec.group(name).out_offsets
        source = whole.groups[name]
        pages.a.copy_(source.a[..., _slice(group.lora_inputs)])
        for projection, start, whole_start in zip(group.projections, group.out_offsets, starts, strict=False):
            for part, place in projection.output_places:
                pages.b[..., _slice(place, start)] = source.b[..., _slice(part, whole_start)]
    return share


@dataclass(frozen=True, slots=True)
class _Place:
    """Where A or B of a group lies in the memory of a packed adapter."""

    group: LoraGroup
    shape: tuple[int, ...]
    start: int
    num_bytes: int


def _places(ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype) -> tuple[_Place, ...]:
    """A and B of each group that the adapter touches."""
    return _places_of(tuple(pages_needed(ranks).items()), model, dtype)


@lru_cache(_MAX_KINDS)
def _places_of(pages: tuple[tuple[LoraGroup, int], ...], model: ModelConfig, dtype: torch.dtype) -> tuple[_Place, ...]:
    """The places for so many pages of each group: asked for several times before a load's first read, so kept."""
    places: list[_Place] = []
    start, rows = 0, LORA_PAGE_RANKS
    for name, num_pages in pages:
        group, layers = model.spec.group(name), model.spec.layers_of(name)
        a = (num_pages, layers, len(group.projections), rows, len(group.lora_inputs))
        b = (num_pages, layers, rows, group.out_features)
        for shape in (a, b):
            num_bytes = math.prod(shape) * dtype.itemsize
            places.append(_Place(name, shape, start, num_bytes))
            start += _aligned(num_bytes)
    return tuple(places)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _covers(adapter: Adapter, model: ModelConfig) -> bool:
    """Whether the adapter fills every row of its pages, as most do: then they need not be cleared first."""
    num_rows = sum(place.a.shape[0] for place in adapter.layout.places.values())
    pages = pages_needed(adapter.ref.ranks)
    return num_rows == sum(
        num_pages * LORA_PAGE_RANKS * len(model.spec.group(name).projections) * model.spec.layers_of(name)
        for name, num_pages in pages.items()
    )


def _write_runs(packed: PackedAdapter, adapter: Adapter, model: ModelConfig, dtype: torch.dtype) -> None:
    """Copies through numpy if the dtype stays. Every torch operation, even a view, releases the GIL and must get it
    back from the step loop; in numpy only the copies do, one for each run.
    """
    raw = {group: (_raw(pages.a), _raw(pages.b)) for group, pages in packed.groups.items()}
    unscaled: dict[LoraGroup, list[tuple[slice, slice, float]]] = {group: [] for group in packed.groups}
    for run in adapter.layout.runs:
        group, number, inputs, outputs = _place_in_group(run.module, model)
        layers = slice(run.first_layer, run.first_layer + run.num_layers)
        pages, first, scaling = packed.groups[group], run.first, run.first.scaling
        a = _layers_of(first.a, run.num_layers, run.a_stride_bytes, adapter.file)
        a = a[:, :, inputs]
        b = _layers_of(first.b, run.num_layers, run.b_stride_bytes, adapter.file).swapaxes(1, 2)
        if _TORCH_DTYPES[first.a.dtype] == dtype:
            _write_rows(raw[group][0][:, layers, number], a)
        else:
            _write_rows(pages.a[:, layers, number], _to_float32(a, first.a.dtype))
        for part, columns in outputs:
            if _TORCH_DTYPES[first.b.dtype] == dtype:
                _write_rows(raw[group][1][:, layers, :, columns], b[:, :, part])
                unscaled[group].append((layers, columns, scaling))
            else:
                _write_rows(pages.b[:, layers, :, columns], _to_float32(b[:, :, part], first.b.dtype) * scaling)
                unscaled[group].append((layers, columns, 1.0))
    for group, parts in unscaled.items():
        _scale(packed.groups[group].b, parts)


def _scale(b: Tensor, parts: list[tuple[slice, slice, float]]) -> None:
    """Multiplies (layers, columns) of B, all that is not zero, by their scalings: in one operation if they are equal.

    Torch multiplies half precision in float32 and rounds once.
    """
    scalings = {scaling for _, _, scaling in parts}
    if len(scalings) == 1:
        parts = [(slice(None), slice(None), scalings.pop())]
    for layers, columns, scaling in parts:
        if scaling != 1.0:
            b[:, layers, :, columns].mul_(scaling)


def _place_in_group(module: str, model: ModelConfig) -> tuple[LoraGroup, int, slice, list[tuple[slice, slice]]]:
    """The module's group, its number there, the inputs that are read, and the outputs that are computed, each part with
    its columns of the group's B.
    """
    group, number = model.spec.find(module)
    projection, start = group.projections[number], group.out_offsets[number]
    outputs = [(_slice(part), _slice(place, start)) for part, place in projection.output_places]
    return group.name, number, _slice(group.lora_inputs), outputs


def _slice(part: range, offset: int = 0) -> slice:
    return slice(part.start + offset, part.stop + offset)


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
