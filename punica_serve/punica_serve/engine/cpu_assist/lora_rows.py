"""x A B of some rows on one core, from an adapter's pages in host memory."""

from itertools import pairwise

import torch
from torch import Tensor

from punica_serve.engine.cpu_assist.exchange_memory import ExchangeShape, GroupWeights


class HostWeights:
    """An adapter in the memory of the host cache."""

    def __init__(self, host: Tensor, shape: ExchangeShape, weights: tuple[GroupWeights, ...]) -> None:
        """``host``: uint8, all of the host cache's memory."""
        self._shape = shape
        self._pages = [
            (
                _pages(host, shape.a_shape(number, own.num_pages), own.a_start, shape.torch_dtype),
                _pages(host, shape.b_shape(number, own.num_pages), own.b_start, shape.torch_dtype),
            )
            for number, own in enumerate(weights)
        ]

    def gather(self, layer: int, group: int) -> tuple[Tensor, Tensor]:
        """A [slices * ranks, in] and B [ranks, out] of one layer in one piece each, warm in the core's cache."""
        a, b = self._pages[group]
        return a[:, layer].transpose(0, 1).flatten(0, 2).contiguous(), b[:, layer].flatten(0, 1)


def compute_rows(out: Tensor, x: Tensor, a: Tensor, b: Tensor, out_offsets: tuple[int, ...]) -> None:
    """out [rows, out] = x A B for each slice: x [rows, in], and A and B as ``gather`` gives them."""
    v, num_ranks = x @ a.T, len(b)
    for number, (left, right) in enumerate(pairwise(out_offsets)):
        torch.mm(v[:, number * num_ranks : (number + 1) * num_ranks], b[:, left:right], out=out[:, left:right])


def _pages(host: Tensor, shape: tuple[int, ...], start: int, dtype: torch.dtype) -> Tensor:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return host[start : start + num_bytes].view(dtype).view(shape)
