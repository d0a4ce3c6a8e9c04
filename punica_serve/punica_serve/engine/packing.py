"""An adapter's weights in the layout of the pool's pages, on the host: the form in which they wait and are copied."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from punica_serve.adapters.adapter import STORAGE_DTYPES, Adapter, LayerRun, TensorDtype, TensorPlace
from punica_serve.errors import AdapterRejected
from punica_serve.lora_layout import LORA_GROUPS, LORA_PAGE_RANKS, pages_needed
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import LoraGroup

_TORCH_DTYPES: dict[TensorDtype, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

#: Where the parts of a packed adapter start: what every dtype and every copy engine is content with.
_ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Pages of one group, shaped as in GroupPool. What the adapter lacks (modules, layers, last rank rows) is zero."""

    #: [pages, layers, slices, 8, in_features]
    a: Tensor
    #: [pages, layers, 8, out_features of all slices], scaled.
    b: Tensor


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """Views into one stretch of host memory."""

    groups: Mapping[LoraGroup, PackedGroup]


def packed_num_bytes(ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype) -> int:
    """The memory that an adapter of such ranks takes when packed."""
    shapes = _part_shapes(ranks, model)
    return sum(_aligned(math.prod(shape) * dtype.itemsize) for pair in shapes.values() for shape in pair)


def packed_views(memory: Tensor, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype) -> PackedAdapter:
    """The pages of an adapter of such ranks in ``memory``, uint8 [packed_num_bytes], with whatever that holds."""
    position = 0

    def part(shape: tuple[int, ...]) -> Tensor:
        nonlocal position
        start, num_bytes = position, math.prod(shape) * dtype.itemsize
        position += _aligned(num_bytes)
        return memory[start : start + num_bytes].view(dtype).view(shape)

    shapes = _part_shapes(ranks, model)
    return PackedAdapter({group: PackedGroup(part(a), part(b)) for group, (a, b) in shapes.items()})


def pack_adapter(adapter: Adapter, model: ModelConfig, dtype: torch.dtype, memory: Tensor) -> PackedAdapter:
    """Lays an adapter out in pages of ``dtype`` in ``memory``, uint8 [packed_num_bytes], whatever that held before.

    Scaling is folded into B in float32, before the one rounding. Raises AdapterRejected, naming the projections, if a
    scaled weight is too large for ``dtype``.
    """
    packed = packed_views(memory, adapter.ref.ranks, model, dtype)
    if not _covers(adapter, model):
        memory.zero_()
    for run in adapter.layout.runs:
        _write_run(packed, run, adapter.file, model)
    for group, pages in packed.groups.items():
        if not (_is_finite(pages.a) and _is_finite(pages.b)):
            message = f"weights of {', '.join(LORA_GROUPS[group])}, scaled, are too large for {dtype}"
            raise AdapterRejected(message, param=group)
    return packed


def _part_shapes(
    ranks: Mapping[str, int], model: ModelConfig
) -> dict[LoraGroup, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Of A and of B of each group that the adapter touches."""
    layers, rows, shapes = model.num_hidden_layers, LORA_PAGE_RANKS, model.linear_shapes
    return {
        group: (
            (num_pages, layers, len(LORA_GROUPS[group]), rows, shapes[LORA_GROUPS[group][0]][1]),
            (num_pages, layers, rows, sum(shapes[module][0] for module in LORA_GROUPS[group])),
        )
        for group, num_pages in pages_needed(ranks).items()
    }


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _covers(adapter: Adapter, model: ModelConfig) -> bool:
    """Whether the adapter fills every row of its pages: most do, and then nothing needs to be cleared first."""
    num_rows = sum(place.a.shape[0] for place in adapter.layout.places.values())
    pages = pages_needed(adapter.ref.ranks)
    num_modules = {group: len(LORA_GROUPS[group]) for group in pages}
    whole = sum(pages[group] * LORA_PAGE_RANKS * num_modules[group] for group in pages)
    return num_rows == whole * model.num_hidden_layers


def _write_run(packed: PackedAdapter, run: LayerRun, file: npt.NDArray[np.uint8], model: ModelConfig) -> None:
    """One module's pairs in many layers, in few operations: threads that read adapters share Python with the steps."""
    group = next(group for group, modules in LORA_GROUPS.items() if run.module in modules)
    modules = LORA_GROUPS[group]
    number = modules.index(run.module)
    start = sum(model.linear_shapes[module][0] for module in modules[:number])
    layers = slice(run.first_layer, run.first_layer + run.num_layers)
    columns = slice(start, start + model.linear_shapes[run.module][0])
    a = _layers_of(run.first.a, run.num_layers, run.a_stride_bytes, file)
    b = _layers_of(run.first.b, run.num_layers, run.b_stride_bytes, file)
    _write_rows(packed.groups[group].a[:, layers, number], a)
    _write_rows(packed.groups[group].b[:, layers, :, columns], b.transpose(1, 2), run.first.scaling)


def _write_rows(pages: Tensor, rows: Tensor, scaling: float = 1.0) -> None:
    """rows [layers, r, features], scaled, -> the first r rank rows of pages [pages, layers, 8, features]."""
    rank = rows.shape[1]
    num_whole, num_rest = divmod(rank, LORA_PAGE_RANKS)
    if num_whole:
        whole = rows[:, : rank - num_rest].unflatten(1, (num_whole, LORA_PAGE_RANKS))
        _write_scaled(pages[:num_whole], whole.transpose(0, 1), scaling)
    if num_rest:
        _write_scaled(pages[num_whole, :, :num_rest], rows[:, rank - num_rest :], scaling)


def _write_scaled(place: Tensor, values: Tensor, scaling: float) -> None:
    if scaling == 1.0:
        place.copy_(values)
    elif place.dtype == values.dtype:
        place.copy_(values).mul_(scaling)  # torch multiplies half precision in float32, and rounds once
    else:
        place.copy_(values.float() * scaling)


def _layers_of(first: TensorPlace, num_layers: int, stride_bytes: int, file: npt.NDArray[np.uint8]) -> Tensor:
    """[layers, *shape]: a view of the file, or a copy where its tensors are not aligned."""
    dtype, size = _TORCH_DTYPES[first.dtype], STORAGE_DTYPES[first.dtype].itemsize
    num_bytes = first.end - first.begin + (num_layers - 1) * stride_bytes
    stretch = torch.from_numpy(file[first.begin : first.begin + num_bytes])
    if first.begin % size or stride_bytes % size:
        tensor_bytes = first.end - first.begin
        tensors = stretch.as_strided((num_layers, tensor_bytes), (stride_bytes, 1)).clone()
        return tensors.view(dtype).view(num_layers, *first.shape)
    rows, columns = first.shape
    return stretch.view(dtype).as_strided((num_layers, rows, columns), (stride_bytes // size, columns, 1))


def _is_finite(tensor: Tensor) -> bool:
    """Without a temporary of its size: NaN and infinity show in the extremes."""
    low, high = tensor.aminmax()
    return bool(low.isfinite() & high.isfinite())
