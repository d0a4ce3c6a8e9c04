"""Paged attention for bf16 and fp16 on NVIDIA GPUs: decodes by FlashInfer, a prefill's rows by our own kernel.

In a CUDA graph FlashInfer's prefill always splits contexts and merges the parts, which costs a short prompt more than
its attention (27 us a layer where ours takes 8: docs/performance.md); there is at most one prefill in a step. Its rows
compute, while the decodes beside them wait for memory, so the two run on streams of their own.

FlashInfer divides the contexts of few decodes among blocks by itself. Those of many it leaves whole, and the longest
are late; then we divide them (``context_parts``), as requests of their own with a copy of the query, and merge.

One object serves one step shape: tables at fixed addresses, launches of fixed size, so that ``run`` can be captured in
a CUDA graph and ``plan`` repeated before each replay. Nothing here makes the host wait for the device.

Past the end of a request FlashInfer fills values with zeros and replaces scores, so what an earlier owner left in the
tail of a page, NaN included, stays out of the sums.
"""

from dataclasses import replace
from typing import Any

import torch
from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper, fast_decode_plan
from torch import Tensor

from punica_kernels.merge_attention import merge_attention
from punica_serve.engine.context_parts import divide_longest
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.planner import StepPlan
from punica_serve.engine.step_pages import PageRuns, lay_out_pages
from punica_serve.engine.step_shape import StepShape
from punica_serve.engine.step_words import StepWords
from punica_serve.engine.triton_attention import PrefillAttention, num_page_words, write_pages
from punica_serve.model_config import ModelConfig

_FLOAT_BYTES = 128 << 20
_INT_BYTES = 1 << 20
#: Rows of queries that one block takes, on tensor cores.
_SMALL_TILE_ROWS, _TILE_ROWS = 16, 64
#: Blocks that FlashInfer splits contexts into, for each multiprocessor.
_BLOCKS_PER_SM = 2
#: Of the decode kernel: with as many, FlashInfer leaves contexts whole. (With more on another GPU it would divide our
#: parts once more, and be right.)
_DECODE_BLOCKS_PER_SM = 6
#: Rows for each copy of a query. More would cost more to merge than shorter parts gain.
_ROWS_PER_COPY = 4
#: Query heads per key head from which tensor cores decode faster; the other kernels know 1, 2 and 3 of the smaller.
_TENSOR_CORE_GROUP = 4


class FlashInferWorkspace:
    """What the shapes of one engine share. They run one after the other."""

    def __init__(self, cache: KvCache, model: ModelConfig, *, max_rows: int, max_decodes: int) -> None:
        pool, heads = cache.pool, model.num_attention_heads
        max_parts = max_decodes + num_copies(model, pool.device, max_decodes)
        num_bytes = max(_FLOAT_BYTES, _split_bytes(model, pool.device, max_parts))
        #: Partial results of contexts that are split over blocks. FlashInfer wants zeros at first.
        self.floats = torch.zeros(num_bytes, dtype=torch.uint8, device=pool.device)
        #: Which block takes what.
        self.ints = torch.zeros(_INT_BYTES, dtype=torch.uint8, device=pool.device)
        max_copies = max_parts - max_decodes
        #: [rows + copies, heads, head_dim] of the newest layer.
        self.out = torch.zeros(max_rows + max_copies, heads, model.head_dim, dtype=pool.dtype, device=pool.device)
        #: [decodes + copies, heads]: what the copies' parts are merged by.
        self.log_sums = torch.zeros(max_parts, heads, device=pool.device)
        #: Where a prefill's rows run beside the decodes.
        self.side = torch.cuda.Stream(pool.device)


class FlashInferAttention:
    """Attention of one step shape. ``plan`` before ``run``."""

    def __init__(
        self, cache: KvCache, model: ModelConfig, shape: StepShape, words: StepWords, workspace: FlashInferWorkspace
    ) -> None:
        self._cache = cache
        self._shape = shape
        self._words = words
        self._side = workspace.side
        self.num_copies = num_copies(model, cache.pool.device, shape.num_decode_rows)
        self._out = workspace.out[: shape.num_rows + self.num_copies]
        self._log_sums = workspace.log_sums[: shape.num_decode_rows + self.num_copies]
        #: int32 [rows]: page * page_size + offset, where each row's key and value go; -1 keeps them out.
        self.slots = words.device("slots")
        self.copy_starts = words.device("copy_starts") if self.num_copies else None
        self._prefill = PrefillAttention(model, shape.num_prefill_rows, words)
        self._decode = _Decode(cache, model, words, workspace) if shape.num_decode_rows else None

    @staticmethod
    def parts(cache: KvCache, model: ModelConfig, shape: StepShape) -> dict[str, int]:
        """The words that it takes, those of pages last."""
        copies = num_copies(model, cache.pool.device, shape.num_decode_rows)
        num_decodes = shape.num_decode_rows + copies
        return {
            "slots": shape.num_rows,
            "copy_starts": shape.num_rows + 1,
            **PrefillAttention.PARTS,
            "page_starts": num_decodes + 1,
            "last_page_lengths": num_decodes,
            "pages": num_page_words(cache, model, shape, num_copies=copies),
        }

    def plan(self, step: StepPlan) -> None:
        """Writes the tables of a step, which must fit the shape, into the words, and plans the decodes.

        What FlashInfer plans is copied on the current stream. Copies of the plan before must have ended, as they are
        read from the memory that this one writes.
        """
        cache = self._cache
        pages = lay_out_pages(step, self._shape, page_size=cache.page_size, null_page=cache.null_page)
        if pages.decodes:
            pages = replace(pages, decodes=self._divide(pages.decodes))
        self._words.write("slots", pages.slots)
        write_pages(self._words, pages.decodes, pages.prefill)
        self._prefill.write(pages)
        if self._decode and pages.decodes:
            self._decode.plan(pages.decodes)

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Queues attention to what is in the cache: q [rows + copies, heads, head_dim] -> [rows, heads * head_dim].

        The result is valid until the next ``run`` of any shape. Rows that pad hold numbers of no meaning.
        """
        cache, num_prefill = self._cache.layer(layer), self._shape.num_prefill_rows
        main = torch.cuda.current_stream()
        side = self._side if num_prefill and self._decode else main
        if num_prefill:
            side.wait_stream(main)
            with torch.cuda.stream(side):
                self._prefill.run(self._out[:num_prefill], q[:num_prefill], *cache)
        if self._decode:
            self._run_decodes(self._decode, q[num_prefill:], cache, self._out[num_prefill:])
        main.wait_stream(side)
        return self._out[: self._shape.num_rows].flatten(1)

    def _divide(self, decodes: PageRuns) -> PageRuns:
        """The decodes as FlashInfer gets them; writes what the merge has to know."""
        if not self.num_copies:
            return decodes
        cache = self._cache
        parts, starts = divide_longest(decodes, self.num_copies, page_size=cache.page_size, null_page=cache.null_page)
        # Zeros in front: a prefill's rows have no copies.
        self._words.words("copy_starts")[self._shape.num_prefill_rows :] = starts
        return parts

    def _run_decodes(self, decode: "_Decode", q: Tensor, cache: tuple[Tensor, Tensor], out: Tensor) -> None:
        if self.copy_starts is None:
            decode.wrapper.run(q, cache, out=out)
            return
        decode.wrapper.run(q, cache, out=out, lse=self._log_sums, return_lse=True)
        merge_attention(out, self._log_sums, self.copy_starts[self._shape.num_prefill_rows :], chained=True)


class _Decode:
    """All decodes of a step: one row, one request."""

    def __init__(self, cache: KvCache, model: ModelConfig, words: StepWords, workspace: FlashInferWorkspace) -> None:
        self._words = words
        self._settings: dict[str, Any] = {
            "num_qo_heads": model.num_attention_heads,
            "num_kv_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "page_size": cache.page_size,
            "q_data_type": cache.pool.dtype,
            "kv_data_type": cache.pool.dtype,
        }
        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            workspace.floats,
            use_cuda_graph=True,
            use_tensor_cores=model.num_attention_heads // model.num_key_value_heads >= _TENSOR_CORE_GROUP,
            paged_kv_indptr_buffer=words.device("page_starts"),
            paged_kv_indices_buffer=words.device("pages"),
            paged_kv_last_page_len_buffer=words.device("last_page_lengths"),
            backend="fa2",
        )
        self.wrapper.reset_workspace_buffer(workspace.floats, workspace.ints)
        # The full plan chooses the kernels, whatever the tables. Later ones copy no tables: the words bring them.
        num_decodes = len(words.words("last_page_lengths"))
        words.words("page_starts")[:] = range(num_decodes + 1)
        words.words("last_page_lengths").fill(1)
        self.wrapper.plan(*self._tables(num_decodes), **self._settings)

    def plan(self, runs: PageRuns) -> None:
        """The pages are in the words."""
        self._words.write("page_starts", runs.indptr)
        self._words.write("last_page_lengths", runs.last_page_lengths)
        fast_decode_plan(self.wrapper, *self._tables(len(runs.indices)), **self._settings)

    def _tables(self, num_pages: int) -> tuple[Tensor, Tensor, Tensor]:
        """As FlashInfer reads them while it plans: of the pages their number alone."""
        words = self._words
        return words.host("page_starts"), words.device("pages")[:num_pages], words.host("last_page_lengths")


def num_copies(model: ModelConfig, device: torch.device, num_decodes: int) -> int:
    """Parts that the contexts of so many decodes are divided into, beyond one each. Tensor cores do without."""
    group = model.num_attention_heads // model.num_key_value_heads
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    is_whole = num_decodes * model.num_key_value_heads >= _DECODE_BLOCKS_PER_SM * num_sms
    return num_decodes // _ROWS_PER_COPY if is_whole and group < _TENSOR_CORE_GROUP else 0


def _split_bytes(model: ModelConfig, device: torch.device, max_decodes: int) -> int:
    """What partial results may take, in float32, with their scales."""
    group = model.num_attention_heads // model.num_key_value_heads
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    tile_rows = _SMALL_TILE_ROWS if group <= _SMALL_TILE_ROWS else _TILE_ROWS
    num_tiles = max(_BLOCKS_PER_SM * num_sms // model.num_key_value_heads, 2 * max_decodes * -(-group // tile_rows))
    return model.num_attention_heads * (num_tiles + 1) * tile_rows * (model.head_dim + 1) * torch.float32.itemsize
