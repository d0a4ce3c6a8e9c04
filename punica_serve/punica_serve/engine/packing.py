"""An adapter's weights in the layout of the pool's pages, on the host: the form in which they wait and are copied."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from punica_serve.adapters.adapter import Adapter, HostTensor, LoraPair
from punica_serve.errors import AdapterRejected
from punica_serve.lora_layout import LORA_GROUPS, LORA_PAGE_RANKS, pages_needed
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import LoraGroup


@dataclass(frozen=True, slots=True)
class PackedGroup:
    """Pages of one group, shaped as in GroupPool. What the adapter lacks (modules, layers, last rank rows) is zero."""

    #: [pages, layers, slices, 8, in_features]
    a: Tensor
    #: [pages, layers, 8, out_features of all slices], scaled.
    b: Tensor


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    groups: Mapping[LoraGroup, PackedGroup]

    @property
    def num_bytes(self) -> int:
        return sum(group.a.nbytes + group.b.nbytes for group in self.groups.values())


def pack_adapter(adapter: Adapter, model: ModelConfig, dtype: torch.dtype) -> PackedAdapter:
    """Lays an adapter out in pages of ``dtype``. Scaling is folded into B in float32, before the one rounding.

    Raises AdapterRejected, naming the projections, if a scaled weight is too large for ``dtype``.
    """
    needed = pages_needed(adapter.ref.ranks)
    packed = PackedAdapter({group: _pack_group(adapter, model, group, needed[group], dtype) for group in needed})
    for group, pages in packed.groups.items():
        if not (pages.a.isfinite().all() and pages.b.isfinite().all()):
            message = f"weights of {', '.join(LORA_GROUPS[group])}, scaled, are too large for {dtype}"
            raise AdapterRejected(message, param=group)
    return packed


def _pack_group(
    adapter: Adapter, model: ModelConfig, group: LoraGroup, num_pages: int, dtype: torch.dtype
) -> PackedGroup:
    modules = LORA_GROUPS[group]
    layers, rows, rank = model.num_hidden_layers, LORA_PAGE_RANKS, num_pages * LORA_PAGE_RANKS
    outs = [model.linear_shapes[module][0] for module in modules]
    a = torch.zeros(layers, len(modules), rank, model.linear_shapes[modules[0]][1], dtype=dtype)
    b = torch.zeros(layers, rank, sum(outs), dtype=dtype)
    for layer in range(layers):
        slices = b[layer].split(outs, dim=1)
        for number, module in enumerate(modules):
            pair = adapter.pairs.get((layer, module))
            if pair is not None:
                _write_pair(a[layer, number], slices[number], pair)
    return PackedGroup(
        a=a.unflatten(2, (num_pages, rows)).permute(2, 0, 1, 3, 4).contiguous(),
        b=b.unflatten(1, (num_pages, rows)).transpose(0, 1).contiguous(),
    )


def _write_pair(a: Tensor, b: Tensor, pair: LoraPair) -> None:
    a[: pair.rank] = _to_torch(pair.a)
    b[: pair.rank] = (_to_torch(pair.b).float() * pair.scaling).T


def _to_torch(tensor: HostTensor) -> Tensor:
    """The same bytes as a torch tensor. numpy has no bfloat16: it holds the bits as uint16."""
    array = torch.from_numpy(tensor.array)
    return array.view(torch.bfloat16) if tensor.dtype == "BF16" else array
