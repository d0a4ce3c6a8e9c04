"""The paged KvCache of one device. The page is the outermost dimension, so requests stay separable (Punica, sec. 5)."""

import torch
from torch import Tensor

from punica_serve.engine.page_pool import PagePool
from punica_serve.model_config import ModelConfig


class KvCache:
    """``pool``: [pages, layers, 2 (key, value), page_size, kv_heads, head_dim]; ``pages``: its books."""

    def __init__(
        self, model: ModelConfig, *, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page_size = page_size
        layers, heads = model.num_hidden_layers, model.num_key_value_heads
        self.pool = torch.empty(num_pages, layers, 2, page_size, heads, model.head_dim, dtype=dtype, device=device)
        self.pages = PagePool(num_pages)

    @property
    def capacity_tokens(self) -> int:
        """Tokens of the longest request that the empty pool could hold."""
        return self.pages.num_pages * self.page_size

    def allocate(self, num_pages: int) -> list[int]:
        """Takes pages, zeroed: attention masks slots that are not written yet, but not an earlier owner's NaN."""
        pages = self.pages.allocate(num_pages)
        self.pool.index_fill_(0, torch.tensor(pages, dtype=torch.int64, device=self.pool.device), 0)
        return pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def layer(self, number: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self.pool[:, number, 0], self.pool[:, number, 1]
