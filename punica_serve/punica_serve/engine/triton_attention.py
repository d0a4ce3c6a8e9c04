"""Paged attention in Triton, for the dtypes and head sizes that FlashInfer has no kernels for, float32 above all.

The same interface: one object serves one step shape, ``run`` can be captured in a CUDA graph, ``plan`` makes the host
wait for nothing.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from punica_kernels.paged_attention import paged_attention
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.pinned_words import PinnedWords
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_pages import PageRuns, lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.model_config import ModelConfig


class TritonPagedAttention:
    """Attention of one step shape. ``plan`` before ``run``."""

    def __init__(self, cache: KvCache, model: ModelConfig, shape: StepShape) -> None:
        self._cache = cache
        self._shape = shape
        pool, heads = cache.pool, model.num_attention_heads
        self._out = torch.zeros(shape.num_rows, heads, model.head_dim, dtype=pool.dtype, device=pool.device)
        self._slots = PinnedWords(shape.num_rows, pool.device)
        #: int32 [rows]: page * page_size + offset, where each row's key and value go; -1 keeps them out.
        self.slots = self._slots.device
        self.num_copies = 0
        self.copy_starts: Tensor | None = None
        self._prefill = RequestTables(cache, model, 1, shape.num_prefill_rows)
        self._decode = RequestTables(cache, model, shape.num_decode_rows, 1)

    def plan(self, step: StepPlan) -> None:
        """Queues the tables of a step, which must fit the shape, on the current stream.

        Copies of the plan before it must have ended, as they are read from the memory that this one writes.
        """
        cache = self._cache
        pages = lay_out_pages(step, self._shape, page_size=cache.page_size, null_page=cache.null_page)
        self._slots.send(pages.slots)
        if pages.prefill:
            self._prefill.send(pages.prefill, [0, pages.num_prefill_rows])
        if pages.decodes:
            self._decode.send(pages.decodes, range(self._shape.num_decode_rows + 1))

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run``. Rows that pad hold numbers of no meaning.
        """
        keys_and_values = self._cache.layer(layer)
        num_prefill = self._shape.num_prefill_rows
        if num_prefill:
            self._prefill.attend(self._out[:num_prefill], q[:num_prefill], *keys_and_values)
        if self._shape.num_decode_rows:
            self._decode.attend(self._out[num_prefill:], q[num_prefill:], *keys_and_values)
        return self._out.flatten(1)


class RequestTables:
    """Pages of a fixed number of requests, one row of a table for each, and the attention of their newest rows."""

    def __init__(self, cache: KvCache, model: ModelConfig, num_requests: int, max_query_rows: int) -> None:
        device = cache.pool.device
        self._scale = model.head_dim**-0.5
        longest = max(model.max_position_embeddings, max_query_rows)
        self._table_shape = (num_requests, cache.pages_for(longest))
        self._page_words = PinnedWords(num_requests * self._table_shape[1], device)
        #: int32 [requests, most pages of one]; what a request does not use is some page.
        self._pages = self._page_words.device.view(self._table_shape)
        #: int32 [requests]
        self._lengths = PinnedWords(num_requests, device)
        #: int32 [requests + 1]: where each request's rows of queries begin.
        self._row_indptr = PinnedWords(num_requests + 1, device)
        self._max_query_rows = max_query_rows

    def send(self, runs: PageRuns, row_indptr: Sequence[int]) -> None:
        """Queues the tables of requests whose rows of queries begin at ``row_indptr``, which has their end too."""
        self._lengths.send(runs.lengths)
        self._row_indptr.send(np.array(row_indptr, dtype=np.int32))
        table = np.zeros(self._table_shape, dtype=np.int32)
        columns = np.arange(self._table_shape[1])
        table[columns < np.diff(runs.indptr)[:, None]] = runs.indices
        self._page_words.send(table.ravel())

    def attend(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """Queues the attention of the requests' rows; q and out: [rows, heads, head_dim]."""
        paged_attention(
            out,
            q,
            keys,
            values,
            self._pages,
            self._lengths.device,
            self._row_indptr.device,
            self._max_query_rows,
            self._scale,
        )
