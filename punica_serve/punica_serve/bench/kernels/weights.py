"""LoRA weights of many layers in the engine's pages, one adapter of each batch after the other."""

from typing import Literal

import torch
from torch import Tensor

from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.bench.kernels.case import Case

#: Where an adapter's pages lie. "scattered": anywhere, as in a used pool. "adjacent": one after the other; in the
#: engine's layer-major pages, the other layers still lie between them. "contiguous": a separate pool for each layer,
#: with pages one after the other, so that an adapter's A and B are one block each.
Layout = Literal["scattered", "adjacent", "contiguous"]


class PagedWeights:
    """Random A and B of ``num_layers`` layers, with enough pages for the largest batch."""

    def __init__(
        self,
        *,
        h_in: int,
        h_out: int,
        num_pages: int,
        num_layers: int,
        dtype: torch.dtype,
        device: torch.device,
        layout: Layout = "scattered",
    ) -> None:
        self.h_in, self.h_out, self.num_layers = h_in, h_out, num_layers
        self._layout = layout
        layers_last = (num_pages, num_layers) if layout != "contiguous" else (num_layers, num_pages)
        generator = torch.Generator(device).manual_seed(1)
        a = torch.empty(*layers_last, 1, LORA_PAGE_RANKS, h_in, dtype=dtype, device=device)
        b = torch.empty(*layers_last, LORA_PAGE_RANKS, h_out, dtype=dtype, device=device)
        a.normal_(std=h_in**-0.5, generator=generator)
        b.normal_(std=0.25, generator=generator)
        self._a, self._b = (a, b) if layout != "contiguous" else (a.transpose(0, 1), b.transpose(0, 1))
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(2))
        self._pages = order.tolist() if layout == "scattered" else list(range(num_pages))

    @property
    def dtype(self) -> torch.dtype:
        return self._a.dtype

    @property
    def device(self) -> torch.device:
        return self._a.device

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """a [pages, 1, 8, h_in] and b [pages, 8, h_out] of one layer: strided views, as in the engine."""
        return self._a[:, number], self._b[:, number]

    def pages(self, case: Case) -> list[list[int]]:
        """The pages of each segment's adapter; none are shared."""
        pages, start = [], 0
        for rank in case.ranks:
            end = start + rank // LORA_PAGE_RANKS
            pages.append(self._pages[start:end])
            start = end
        if start > len(self._pages):
            raise ValueError(f"{case.num_adapters} adapters take {start} pages, but there are {len(self._pages)}")
        return pages

    def dense(self, case: Case, layer: int) -> list[tuple[Tensor, Tensor]]:
        """(A [rank, h_in], B [rank, h_out]) of each segment's adapter, in float64, for references."""
        a, b = self.layer(layer)
        return [(a[own].double().flatten(0, 2), b[own].double().flatten(0, 1)) for own in self.pages(case)]
