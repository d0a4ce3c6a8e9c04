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

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS, pages_needed
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.protocol import LoraGroup

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


def pack_share(
    memory: Tensor, whole: PackedAdapter, ranks: Mapping[str, int], model: ModelConfig, dtype: torch.dtype
) -> PackedAdapter:
    """The share of a rank, whose ``model`` it is, of an adapter that is packed as a whole."""
    share = packed_views(memory, ranks, model, dtype)
    for name, pages in share.groups.items():
        group, starts = model.spec.group(name), model.whole.spec.group(name).out_offsets
        source = whole.groups[name]
        pages.a.copy_(source.a[..., slice_of(group.lora_inputs)])
        for projection, start, whole_start in zip(group.projections, group.out_offsets, starts, strict=False):
            for part, place in projection.output_places:
                pages.b[..., slice_of(place, start)] = source.b[..., slice_of(part, whole_start)]
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


def slice_of(part: range, offset: int = 0) -> slice:
    """The slice of these places, each of them ``offset`` further on."""
    return slice(part.start + offset, part.stop + offset)
