"""Paged attention of a GPU's steps: one launch for the decodes, one for the prefill's rows, on streams of their own.

A prefill's rows compute, while the decodes beside them wait for memory. One object serves one step shape: tables at
fixed addresses, launches of fixed size, so that ``run`` can be captured in a CUDA graph and ``plan`` repeated before
each replay. Nothing here makes the host wait for the device.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from punica_kernels.attention_spans import AttentionShape, Indices
from punica_kernels.paged_attention import AttentionWorkspace, paged_attention
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_pages import PageRuns, lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.model_config import ModelConfig


class CudaAttention:
    """Attention of one step shape. ``plan`` before ``run``."""

    def __init__(
        self, cache: KvCache, model: ModelConfig, shape: StepShape, words: StepWords, memory: "AttentionMemory"
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._words = words
        self._out = memory.out[: shape.num_rows]
        #: int32 [rows]: page * page_size + offset, where each row's key and value go; -1 keeps them out.
        self.slots = words.device("slots")
        decodes, prefill = attention_shapes(cache, model, shape)
        scale = model.head_dim**-0.5
        self._decodes = _Rows(decodes, words, "decode_spans", memory.decodes, scale) if decodes else None
        self._prefill = _Rows(prefill, words, "prefill_spans", memory.prefill, scale) if prefill else None
        self._side = memory.side if decodes and prefill else None

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step, which must fit the shape, into the words."""
        pages = lay_out_pages(step, self._shape, page_size=self._cache.page_size)
        runs = (pages.decodes, pages.prefill)
        self._words.write("slots", pages.slots)
        self._words.write("pages", np.concatenate([run.indices for run in runs]))
        if self._decodes:
            self._decodes.plan(pages.decodes, np.arange(len(pages.decodes.starts)), 0, self._cache.page_size)
        if self._prefill:
            rows = np.array([pages.first_prefill_row, self._shape.num_prefill_rows][: len(pages.prefill.starts)])
            self._prefill.plan(pages.prefill, rows, len(pages.decodes.indices), self._cache.page_size)

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run`` of any shape. Rows that pad hold numbers of no meaning.
        """
        cache, num_prefill = self._cache.layer(layer), self._shape.num_prefill_rows
        if self._side:
            self._side.wait_stream(torch.cuda.current_stream())
        if self._prefill:
            with torch.cuda.stream(self._side) if self._side else nullcontext():
                self._prefill.run(self._out[:num_prefill], q[:num_prefill], *cache, chained=not self._side)
        if self._decodes:
            self._decodes.run(self._out[num_prefill:], q[num_prefill:], *cache, chained=True)
        if self._side:
            torch.cuda.current_stream().wait_stream(self._side)
        return self._out.flatten(1)


class AttentionMemory:
    """What the shapes of one engine share. They run one after the other."""

    def __init__(self, cache: KvCache, model: ModelConfig, shapes: Sequence[StepShape]) -> None:
        pool = cache.pool
        decodes, prefills = zip(*(attention_shapes(cache, model, shape) for shape in shapes), strict=True)
        max_rows = max(shape.num_rows for shape in shapes)
        #: [rows, heads, head_dim] of the newest layer.
        self.out = torch.zeros(
            max_rows, model.num_attention_heads, model.head_dim, dtype=pool.dtype, device=pool.device
        )
        self.decodes = AttentionWorkspace.of([*filter(None, decodes)], model.head_dim, pool.device)
        self.prefill = AttentionWorkspace.of([*filter(None, prefills)], model.head_dim, pool.device)
        #: Where a prefill's rows run beside the decodes.
        self.side = torch.cuda.Stream(pool.device) if pool.is_cuda else None


class _Rows:
    """The rows of a step that one launch attends to."""

    def __init__(
        self, shape: AttentionShape, words: StepWords, name: str, workspace: AttentionWorkspace, scale: float
    ) -> None:
        self._shape = shape
        self._workspace = workspace
        self._scale = scale
        self._words, self._name = words, name

    def plan(self, runs: PageRuns, query_starts: Indices, first_page: int, page_size: int) -> None:
        """``first_page``: where the pages of these requests begin in the step's."""
        words = self._words.words(self._name)
        self._shape.fill(words, runs.lengths, query_starts, runs.starts + first_page, page_size)

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, chained: bool) -> None:
        """Queues the launch."""
        tables = (self._words.device("pages"), self._words.device(self._name), self._shape, self._workspace)
        paged_attention(out, q, keys, values, *tables, self._scale, chained=chained)


def attention_parts(cache: KvCache, model: ModelConfig, shape: StepShape) -> dict[str, int]:
    """The words that attention takes for a step of this shape. They must be the last: not all of them are copied.

    Of pages, a step can have its requests' own, and no more than the cache has: one of short pages has millions, of
    which a step's contexts can't reach most.
    """
    decodes, prefill = attention_shapes(cache, model, shape)
    num_requests = shape.num_decode_rows + (shape.num_prefill_rows > 0)
    return {
        "slots": shape.num_rows,
        "decode_spans": decodes.num_words if decodes else 0,
        "prefill_spans": prefill.num_words if prefill else 0,
        "pages": min(cache.pages.num_pages, num_requests * cache.pages_for(model.max_position_embeddings)),
    }


def make_attentions(
    cache: KvCache, model: ModelConfig, words: Mapping[StepShape, StepWords]
) -> dict[StepShape, CudaAttention]:
    """One attention for each shape of an engine, in its words. They share memory and must run one after the other."""
    memory = AttentionMemory(cache, model, tuple(words))
    return {shape: CudaAttention(cache, model, shape, own, memory) for shape, own in words.items()}


def attention_shapes(
    cache: KvCache, model: ModelConfig, shape: StepShape
) -> tuple[AttentionShape | None, AttentionShape | None]:
    """Those of the decodes and of the prefill, where the step has rows for them."""

    def of(max_requests: int, max_query_rows: int) -> AttentionShape:
        return AttentionShape.of(
            max_requests,
            max_query_rows,
            heads=model.num_attention_heads,
            kv_heads=model.num_key_value_heads,
            dtype=cache.pool.dtype,
            device=cache.pool.device,
        )

    return (
        of(shape.num_decode_rows, 1) if shape.num_decode_rows else None,
        of(1, shape.num_prefill_rows) if shape.num_prefill_rows else None,
    )
