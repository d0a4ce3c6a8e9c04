"""Paged attention in Triton, for the dtypes and head sizes that FlashInfer has no kernels for, float32 above all.

The same interface: one object serves one step shape, ``run`` can be captured in a CUDA graph, ``plan`` makes the host
wait for nothing.
"""

import numpy as np
import torch
from torch import Tensor

from punica_kernels.paged_attention import paged_attention
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.pinned_words import PinnedWords
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_pages import Int32s, PageRuns, lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.model_config import ModelConfig


class TritonPagedAttention:
    """Attention of one step shape. ``plan`` before ``run``."""

    def __init__(self, cache: KvCache, model: ModelConfig, shape: StepShape) -> None:
        self._cache = cache
        self._shape = shape
        self._scale = model.head_dim**-0.5
        pool, heads = cache.pool, model.num_attention_heads
        self._out = torch.zeros(shape.num_rows, heads, model.head_dim, dtype=pool.dtype, device=pool.device)
        self._slots = PinnedWords(shape.num_rows, pool.device)
        #: int32 [rows]: page * page_size + offset, where each row's key and value go; -1 keeps them out.
        self.slots = self._slots.device
        self._prefill = _Tables(cache, model, 1, shape.num_prefill_rows)
        self._decode = _Tables(cache, model, shape.num_decode_rows, 1)

    def plan(self, step: StepPlan) -> None:
        """Queues the tables of a step, which must fit the shape, on the current stream.

        Copies of the plan before it must have ended, as they are read from the memory that this one writes.
        """
        cache = self._cache
        pages = lay_out_pages(step, self._shape, page_size=cache.page_size, null_page=cache.null_page)
        self._slots.send(pages.slots)
        if pages.prefill:
            self._prefill.send(pages.prefill, np.array([0, pages.num_prefill_rows], dtype=np.int32))
        if pages.decodes:
            self._decode.send(pages.decodes, np.arange(self._shape.num_decode_rows + 1, dtype=np.int32))

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run``. Rows that pad hold numbers of no meaning.
        """
        prefill, decode = slice(self._shape.num_prefill_rows), slice(self._shape.num_prefill_rows, None)
        if self._shape.num_prefill_rows:
            self._attend(self._prefill, prefill, layer, q)
        if self._shape.num_decode_rows:
            self._attend(self._decode, decode, layer, q)
        return self._out.flatten(1)

    def _attend(self, tables: "_Tables", rows: slice, layer: int, q: Tensor) -> None:
        paged_attention(
            self._out[rows],
            q[rows],
            *self._cache.layer(layer),
            tables.pages,
            tables.lengths.device,
            tables.row_indptr.device,
            tables.max_query_rows,
            self._scale,
        )


class _Tables:
    """Pages of a fixed number of requests, one row of a table for each."""

    def __init__(self, cache: KvCache, model: ModelConfig, num_requests: int, max_query_rows: int) -> None:
        device = cache.pool.device
        longest = max(model.max_position_embeddings, max_query_rows)
        self._table_shape = (num_requests, cache.pages_for(longest))
        self._page_words = PinnedWords(num_requests * self._table_shape[1], device)
        #: int32 [requests, most pages of one]; what a request does not use is some page.
        self.pages = self._page_words.device.view(self._table_shape)
        #: int32 [requests]
        self.lengths = PinnedWords(num_requests, device)
        #: int32 [requests + 1]: where each request's rows of queries begin.
        self.row_indptr = PinnedWords(num_requests + 1, device)
        self.max_query_rows = max_query_rows

    def send(self, runs: PageRuns, row_indptr: Int32s) -> None:
        self.lengths.send(runs.lengths)
        self.row_indptr.send(row_indptr)
        table = np.zeros(self._table_shape, dtype=np.int32)
        columns = np.arange(self._table_shape[1])
        table[columns < np.diff(runs.indptr)[:, None]] = runs.indices
        self._page_words.send(table.ravel())
