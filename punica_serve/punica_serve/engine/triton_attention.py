"""Paged attention in Triton: of every prefill, and all of it in the dtypes and head sizes that FlashInfer lacks.

One object serves one step shape, ``run`` can be captured in a CUDA graph, ``plan`` makes the host wait for nothing.
"""

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from punica_kernels.paged_attention import paged_attention
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_pages import PageRuns, StepPages, lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.model_config import ModelConfig


class TritonPagedAttention:
    """Attention of one step shape. ``plan`` before ``run``."""

    def __init__(self, cache: KvCache, model: ModelConfig, shape: StepShape, words: StepWords) -> None:
        self._cache = cache
        self._shape = shape
        self._words = words
        pool, heads = cache.pool, model.num_attention_heads
        self._out = torch.zeros(shape.num_rows, heads, model.head_dim, dtype=pool.dtype, device=pool.device)
        #: int32 [rows]: page * page_size + offset, where each row's key and value go; -1 keeps them out.
        self.slots = words.device("slots")
        self.num_copies = 0
        self.copy_starts: Tensor | None = None
        self._prefill = PrefillAttention(model, shape.num_prefill_rows, words)
        self._scale = model.head_dim**-0.5
        self._query_starts = torch.arange(shape.num_decode_rows + 1, dtype=torch.int32, device=pool.device)

    @staticmethod
    def parts(cache: KvCache, model: ModelConfig, shape: StepShape) -> dict[str, int]:
        """The words that it takes, those of pages last."""
        return {
            "slots": shape.num_rows,
            **PrefillAttention.PARTS,
            "decode_lengths": shape.num_decode_rows,
            "page_starts": shape.num_decode_rows + 1,
            "pages": num_page_words(cache, model, shape, num_copies=0),
        }

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step, which must fit the shape, into the words."""
        cache, words = self._cache, self._words
        pages = lay_out_pages(step, self._shape, page_size=cache.page_size, null_page=cache.null_page)
        words.write("slots", pages.slots)
        if pages.decodes:
            words.write("decode_lengths", pages.decodes.lengths)
            words.write("page_starts", pages.decodes.indptr)
        write_pages(words, pages.decodes, pages.prefill)
        self._prefill.write(pages)

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run``. Rows that pad hold numbers of no meaning.
        """
        keys_and_values = self._cache.layer(layer)
        num_prefill, words = self._shape.num_prefill_rows, self._words
        if num_prefill:
            self._prefill.run(self._out[:num_prefill], q[:num_prefill], *keys_and_values)
        if self._shape.num_decode_rows:
            tables = (words.device("pages"), words.device("page_starts"), words.device("decode_lengths"))
            out, q = self._out[num_prefill:], q[num_prefill:]
            paged_attention(out, q, *keys_and_values, *tables, self._query_starts, 1, self._scale)
        return self._out.flatten(1)


class PrefillAttention:
    """Attention of the rows of a step's prefill. Its pages are behind those of the decodes."""

    #: Tokens of the context; the first row and the end; where the pages begin, and the end.
    PARTS: ClassVar = {"prefill": 5}

    def __init__(self, model: ModelConfig, max_rows: int, words: StepWords) -> None:
        self._scale = model.head_dim**-0.5
        self._max_rows = max_rows
        self._words = words

    def write(self, pages: StepPages) -> None:
        """Writes the tables of a step into the words."""
        if pages.prefill is None:
            return
        start = len(pages.decodes.indices) if pages.decodes else 0
        rows = (pages.first_prefill_row, self._max_rows)
        page_starts = (start, start + len(pages.prefill.indices))
        self._words.write("prefill", np.array([*pages.prefill.lengths, *rows, *page_starts], dtype=np.int32))

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor) -> None:
        """Queues the attention of the rows, those that pad left out; q and out: [rows, heads, head_dim]."""
        length, rows, page_starts = self._words.device("prefill").split((1, 2, 2))
        tables = (self._words.device("pages"), page_starts, length, rows)
        paged_attention(out, q, keys, values, *tables, self._max_rows, self._scale)


def num_page_words(cache: KvCache, model: ModelConfig, shape: StepShape, *, num_copies: int) -> int:
    """Pages that a step can have: its requests' own, no more than the cache has, and, where rows pad, one for each
    decode or copy of its query and as many as a prefill's rows take.

    A cache of short pages has millions, of which a step's contexts can't reach most.
    """
    num_requests = shape.num_decode_rows + (shape.num_prefill_rows > 0)
    num_own = min(cache.pages.num_pages, num_requests * cache.pages_for(model.max_position_embeddings))
    return num_own + shape.num_decode_rows + num_copies + cache.pages_for(shape.num_prefill_rows)


def write_pages(words: StepWords, *runs: PageRuns | None) -> None:
    """Writes the pages of requests one after the other."""
    indices = [run.indices for run in runs if run is not None]
    words.write("pages", np.concatenate(indices) if indices else np.empty(0, dtype=np.int32))
