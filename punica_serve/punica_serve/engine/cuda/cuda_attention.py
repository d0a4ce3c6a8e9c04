"""Paged attention of a GPU's steps: one launch for the decodes and one for the prefill's rows, on streams of their own.

The prefill's rows compute while the decodes beside them wait for memory. One object serves one bucket: its tables and
launches have fixed addresses and sizes, so that ``run`` can be captured in a CUDA graph and ``plan`` repeated before
each replay. Nothing here makes the host wait for the device.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.members import Indices
from punica_kernels.paged_attention import paged_attention
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.step_planner import StepPlan
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.step_input_buffer import Section, StepInputBuffer
from punica_serve.engine.cuda.step_pages import PageRuns, lay_out_pages


class CudaAttention:
    """Attention of one bucket: ``plan`` a step, then ``run`` every layer."""

    def __init__(
        self,
        cache: KvCache,
        model: ModelConfig,
        bucket: BatchBucket,
        buffer: StepInputBuffer,
        memory: "AttentionMemory",
    ) -> None:
        self._cache = cache
        self._bucket = bucket
        self._buffer = buffer
        self._out = memory.out[: bucket.num_rows]
        #: int32 [rows]: page * page_size + offset of each row's key and value in the cache; -1 stores neither.
        self.slot_mapping = buffer.device("slot_mapping")
        decodes, prefill = attention_shapes(cache, model, bucket)
        scale = model.head_dim**-0.5
        self._decodes = _Rows(decodes, buffer, "decode_tiles", memory.decodes, scale) if decodes else None
        self._prefill = _Rows(prefill, buffer, "prefill_tiles", memory.prefill, scale) if prefill else None
        self._side = memory.side if decodes and prefill else None

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step, which must fit the bucket, into the input buffer."""
        pages = lay_out_pages(step, self._bucket, page_size=self._cache.page_size)
        runs = (pages.decodes, pages.prefill)
        self._buffer.write("slot_mapping", pages.slot_mapping)
        self._buffer.write("kv_pages", np.concatenate([run.indices for run in runs]))
        if self._decodes:
            self._decodes.plan(pages.decodes, np.arange(len(pages.decodes.starts)), 0, self._cache.page_size)
        if self._prefill:
            rows = np.array([pages.first_prefill_row, self._bucket.num_prefill_rows][: len(pages.prefill.starts)])
            self._prefill.plan(pages.prefill, rows, len(pages.decodes.indices), self._cache.page_size)

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run`` of any bucket. Padding rows hold meaningless numbers.
        """
        cache, num_prefill = self._cache.layer(layer), self._bucket.num_prefill_rows
        if self._side:
            self._side.wait_stream(torch.cuda.current_stream())
        if self._prefill:
            with torch.cuda.stream(self._side) if self._side else nullcontext():
                self._prefill.run(self._out[:num_prefill], q[:num_prefill], *cache, pdl=not self._side)
        if self._decodes:
            self._decodes.run(self._out[num_prefill:], q[num_prefill:], *cache, pdl=True)
        if self._side:
            torch.cuda.current_stream().wait_stream(self._side)
        return self._out.flatten(1)


class AttentionMemory:
    """The memory that the buckets of one engine share: they run one after the other."""

    def __init__(self, cache: KvCache, model: ModelConfig, buckets: Sequence[BatchBucket]) -> None:
        pool = cache.pool
        decodes, prefills = zip(*(attention_shapes(cache, model, bucket) for bucket in buckets), strict=True)
        max_rows = max(bucket.num_rows for bucket in buckets)
        #: [rows, heads, head_dim] of the newest layer.
        self.out = torch.zeros(
            max_rows, model.num_attention_heads, model.head_dim, dtype=pool.dtype, device=pool.device
        )
        self.decodes = AttentionWorkspace.of([*filter(None, decodes)], model.head_dim, pool.device)
        self.prefill = AttentionWorkspace.of([*filter(None, prefills)], model.head_dim, pool.device)
        #: The stream on which a prefill's rows run beside the decodes.
        self.side = torch.cuda.Stream(pool.device) if pool.is_cuda else None


class _Rows:
    """The rows of a step that one launch serves."""

    def __init__(
        self, shape: AttentionShape, buffer: StepInputBuffer, name: Section, workspace: AttentionWorkspace, scale: float
    ) -> None:
        self._shape = shape
        self._workspace = workspace
        self._scale = scale
        self._buffer, self._name = buffer, name

    def plan(self, runs: PageRuns, query_starts: Indices, first_page: int, page_size: int) -> None:
        """``first_page``: the index of these requests' first page among the step's."""
        self._shape.fill(
            self._buffer.array(self._name), runs.lengths, query_starts, runs.starts + first_page, page_size
        )

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, pdl: bool) -> None:
        """Queues the launch."""
        tables = (self._buffer.device("kv_pages"), self._buffer.device(self._name), self._shape, self._workspace)
        paged_attention(out, q, keys, values, *tables, self._scale, pdl=pdl)


def attention_sections(cache: KvCache, model: ModelConfig, bucket: BatchBucket) -> dict[Section, int]:
    """The words of attention's sections. They must be the last ones, since the pages are copied only in part.

    A step has at most the pages of its requests' longest contexts, and no more than the cache has.
    """
    decodes, prefill = attention_shapes(cache, model, bucket)
    num_requests = bucket.num_decode_rows + (bucket.num_prefill_rows > 0)
    return {
        "slot_mapping": bucket.num_rows,
        "decode_tiles": decodes.num_words if decodes else 0,
        "prefill_tiles": prefill.num_words if prefill else 0,
        "kv_pages": min(cache.pages.num_pages, num_requests * cache.pages_for(model.max_position_embeddings)),
    }


def make_attentions(
    cache: KvCache, model: ModelConfig, buffers: Mapping[BatchBucket, StepInputBuffer]
) -> dict[BatchBucket, CudaAttention]:
    """One attention for each bucket of an engine. They share memory and must run one after the other."""
    memory = AttentionMemory(cache, model, tuple(buffers))
    return {bucket: CudaAttention(cache, model, bucket, own, memory) for bucket, own in buffers.items()}


def attention_shapes(
    cache: KvCache, model: ModelConfig, bucket: BatchBucket
) -> tuple[AttentionShape | None, AttentionShape | None]:
    """The shapes of the decodes and of the prefill; None if the bucket has no rows for them."""

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
        of(bucket.num_decode_rows, 1) if bucket.num_decode_rows else None,
        of(1, bucket.num_prefill_rows) if bucket.num_prefill_rows else None,
    )
