"""Paged attention of a GPU's steps: one launch for the decodes and one for all prefills' rows, on streams of their own.

The prefills' rows compute while the decodes beside them wait for memory. One object serves one bucket: its tables and
launches have fixed addresses and sizes, so that ``run`` can be captured in a CUDA graph and ``plan`` repeated before
each replay. Nothing here makes the host wait for the device.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from punica_kernels.attention_tiles import AttentionShape, AttentionWorkspace
from punica_kernels.members import Indices
from punica_kernels.paged_attention import paged_attention
from punica_kernels.shared_prefixes import NO_GROUPS, PrefixGroups, PrefixGroupTracker
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cuda.attention_backend import fa3_modules
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.engine.cuda.flashinfer_rows import FlashInferMemory, FlashInferRows, PrefillShape
from punica_serve.engine.cuda.page_arrays import PageArrays
from punica_serve.engine.cuda.step_input_buffer import Section, StepInputBuffer
from punica_serve.engine.cuda.step_pages import PageRuns, lay_out_pages
from punica_serve.paging.page_rule import first_kept_page

#: The sections of the decodes' and the prefill's tiles, for each distinct window of a model's layers.
_TILES: tuple[tuple[Section, Section], ...] = (
    ("decode_tiles", "prefill_tiles"),
    ("second_decode_tiles", "second_prefill_tiles"),
)
_NO_PAGES: list[int] = []


class AttentionOptions(NamedTuple):
    """Which kernels serve which rows."""

    #: The fewest prefill rows of a bucket that FlashInfer serves; None: it serves none.
    flashinfer_from: int | None = None
    #: Decodes whose page tables begin with the same pages read those once.
    shares_prefixes: bool = False


DEFAULT_OPTIONS = AttentionOptions()


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
        spec = model.spec
        self._layers = spec.layers
        self._decodes: dict[int | None, _Rows] = {}
        self._prefill: dict[int | None, _Rows | FlashInferRows] = {}
        for window, (decode_tiles, prefill_tiles) in zip(spec.windows, _TILES, strict=False):
            decodes, prefill = attention_shapes(cache, model, bucket, window, memory.options)
            if decodes:
                self._decodes[window] = _Rows(decodes, buffer, decode_tiles, memory.decodes, spec)
            if prefill:
                self._prefill[window] = _Rows(prefill, buffer, prefill_tiles, memory.prefill, spec)
        if memory.flashinfer and memory.serves_by_flashinfer(bucket):
            self._prefill = _flashinfer_rows(cache, model, bucket, buffer, memory.flashinfer)
        self._page_arrays = memory.page_arrays
        self._prefix_groups = memory.prefix_groups if memory.options.shares_prefixes else None
        self._side = memory.side if self._decodes and self._prefill else None

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step, which must fit the bucket, into the input buffer."""
        page_size, window = self._cache.page_size, self._cache.window
        pages = lay_out_pages(step, self._bucket, self._page_arrays, page_size=page_size, window=window)
        self._buffer.write("slot_mapping", pages.slot_mapping)
        self._buffer.write("kv_pages", pages.kv_pages)
        groups = self._groups_of(step)
        for decodes in self._decodes.values():
            decodes.plan(pages.decodes, np.arange(len(pages.decodes.starts)), page_size, groups)
        for prefill in self._prefill.values():
            prefill.plan(pages.prefill, pages.prefill_rows, page_size)

    def _groups_of(self, step: StepPlan) -> PrefixGroups:
        if self._prefix_groups is None or not step.shares_pages:
            return NO_GROUPS
        window, page_size = self._cache.window, self._cache.page_size
        if window is None:
            return self._prefix_groups.groups([sequence.pages for sequence in step.decodes])
        # A table whose first pages were given back begins with another one, and its windows end behind its prefix.
        kept = [first_kept_page(sequence.num_cached, page_size, window) == 0 for sequence in step.decodes]
        tables = [each.pages if is_whole else _NO_PAGES for each, is_whole in zip(step.decodes, kept, strict=True)]
        return self._prefix_groups.groups(tables)

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run`` of any bucket. Padding rows hold meaningless numbers.
        """
        cache, num_prefill = self._cache.layer(layer), self._bucket.num_prefill_rows
        window = self._layers[layer].window
        if self._side:
            self._side.wait_stream(torch.cuda.current_stream())
        if self._prefill:
            with torch.cuda.stream(self._side) if self._side else nullcontext():
                self._prefill[window].run(self._out[:num_prefill], q[:num_prefill], *cache, pdl=not self._side)
        if self._decodes:
            self._decodes[window].run(self._out[num_prefill:], q[num_prefill:], *cache, pdl=True)
        if self._side:
            torch.cuda.current_stream().wait_stream(self._side)
        return self._out.flatten(1)


class AttentionMemory:
    """The memory that the buckets of one engine share: they run one after the other."""

    def __init__(
        self, cache: KvCache, model: ModelConfig, buckets: Sequence[BatchBucket], options: AttentionOptions
    ) -> None:
        pool = cache.pool
        self.options = options
        windows = model.spec.windows
        shapes = (attention_shapes(cache, model, bucket, window, options) for bucket in buckets for window in windows)
        decodes, prefills = zip(*shapes, strict=True)
        max_rows = max(bucket.num_rows for bucket in buckets)
        #: [rows, heads, head_dim] of the newest layer.
        self.out = torch.zeros(
            max_rows, model.num_attention_heads, model.head_dim, dtype=pool.dtype, device=pool.device
        )
        self.decodes = AttentionWorkspace.of([*filter(None, decodes)], model.head_dim, pool.device)
        self.prefill = AttentionWorkspace.of([*filter(None, prefills)], model.head_dim, pool.device)
        self.page_arrays, self.prefix_groups = PageArrays(), PrefixGroupTracker(cache.page_size)
        #: The stream on which a prefill's rows run beside the decodes.
        self.side = torch.cuda.Stream(pool.device) if pool.is_cuda else None
        self.flashinfer = (
            FlashInferMemory(pool.device) if any(self.serves_by_flashinfer(bucket) for bucket in buckets) else None
        )

    def serves_by_flashinfer(self, bucket: BatchBucket) -> bool:
        """Whether FlashInfer serves the prefill rows of that bucket."""
        first = self.options.flashinfer_from
        return first is not None and bucket.num_prefill_rows >= first


class _Rows:
    """The rows of a step that one launch serves."""

    def __init__(
        self,
        shape: AttentionShape,
        buffer: StepInputBuffer,
        name: Section,
        workspace: AttentionWorkspace,
        spec: ModelSpec,
    ) -> None:
        self._shape = shape
        self._workspace = workspace
        self._scores = (spec.attention_scale, spec.attention_soft_cap)
        self._buffer, self._name = buffer, name

    def plan(
        self,
        runs: PageRuns,
        query_starts: Indices,
        page_size: int,
        groups: PrefixGroups = NO_GROUPS,
    ) -> None:
        words = self._buffer.array(self._name)
        self._shape.fill(words, runs.lengths, query_starts, runs.starts, page_size, groups)

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, pdl: bool) -> None:
        """Queues the launch."""
        tables = (self._buffer.device("kv_pages"), self._buffer.device(self._name), self._shape, self._workspace)
        paged_attention(out, q, keys, values, *tables, *self._scores, pdl=pdl)


def attention_sections(
    cache: KvCache, model: ModelConfig, bucket: BatchBucket, options: AttentionOptions = DEFAULT_OPTIONS
) -> dict[Section, int]:
    """The words of attention's sections. They must be the last ones, since the pages are copied only in part.

    A step names at most the pages of its requests' longest contexts, and no more than the cache has, where none is
    shared. One that several requests share is named for each of them.
    """
    tiles: dict[Section, int] = {}
    for window, sections in zip(model.spec.windows, _TILES, strict=False):
        for name, shape in zip(sections, attention_shapes(cache, model, bucket, window, options), strict=True):
            tiles[name] = shape.num_words if shape else 0
    num_requests = bucket.num_decode_rows + bucket.num_prefills
    return {
        "slot_mapping": bucket.num_rows,
        **tiles,
        "kv_pages": min(cache.max_pages_named, num_requests * cache.pages_for(model.max_position_embeddings)),
    }


def _flashinfer_rows(
    cache: KvCache, model: ModelConfig, bucket: BatchBucket, buffer: StepInputBuffer, memory: FlashInferMemory
) -> dict[int | None, _Rows | FlashInferRows]:
    """FlashInfer's rows for each distinct window of the model's layers."""
    heads = (model.num_attention_heads, model.num_key_value_heads)
    shape = PrefillShape(bucket.num_prefills, bucket.num_prefill_rows, *heads, model.spec.attention_scale)
    modules = fa3_modules(model, cache.pool.dtype)
    return {module.window: FlashInferRows(shape, module, buffer.device("kv_pages"), memory) for module in modules}


def make_attentions(
    cache: KvCache,
    model: ModelConfig,
    buffers: Mapping[BatchBucket, StepInputBuffer],
    options: AttentionOptions = DEFAULT_OPTIONS,
) -> dict[BatchBucket, CudaAttention]:
    """One attention for each bucket of an engine. They share memory and must run one after the other.

    ``buffers``: with the sections that attention has with these options.
    """
    memory = AttentionMemory(cache, model, tuple(buffers), options)
    return {bucket: CudaAttention(cache, model, bucket, own, memory) for bucket, own in buffers.items()}


def attention_shapes(
    cache: KvCache,
    model: ModelConfig,
    bucket: BatchBucket,
    window: int | None = None,
    options: AttentionOptions = DEFAULT_OPTIONS,
) -> tuple[AttentionShape | None, AttentionShape | None]:
    """The shapes of the decodes and of the prefill in layers with that window; None if the bucket has no rows."""

    def of(max_requests: int, max_query_rows: int, max_rows: int) -> AttentionShape:
        return AttentionShape.of(
            max_requests,
            max_query_rows,
            max_rows=max_rows,
            heads=model.num_attention_heads,
            kv_heads=model.num_key_value_heads,
            head_dim=model.head_dim,
            dtype=cache.pool.dtype,
            device=cache.pool.device,
            window=window,
            shares_prefixes=options.shares_prefixes,
        )

    return (
        of(bucket.num_decode_rows, 1, bucket.num_decode_rows) if bucket.num_decode_rows else None,
        of(bucket.num_prefills, *[bucket.num_prefill_rows] * 2) if bucket.num_prefill_rows else None,
    )
