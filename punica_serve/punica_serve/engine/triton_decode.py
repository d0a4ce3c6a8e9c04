"""Attention of a step's decodes by our own kernel: a fixed grid over equal shares of the requests' tokens."""

from torch import Tensor

from punica_kernels.decode_table import DecodeTable, DecodeTableShape
from punica_kernels.gpu.decode_attention import decode_attention, make_workspace, num_programs
from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.pinned_words import PinnedWords
from punica_serve.engine.step_pages import PageRuns
from punica_serve.model_config import ModelConfig


class TritonDecodeWorkspace:
    """Partial results that the shapes of one engine share. They run one after the other, on one stream."""

    def __init__(self, cache: KvCache, model: ModelConfig) -> None:
        device, heads, kv_heads = cache.pool.device, model.num_attention_heads, model.num_key_value_heads
        self.num_programs = num_programs(kv_heads, device)
        self.kernels = make_workspace(self.num_programs, heads, kv_heads, model.head_dim, device)


class TritonDecode:
    """All decodes of a step: one row, one request."""

    def __init__(self, cache: KvCache, model: ModelConfig, num_rows: int, workspace: TritonDecodeWorkspace) -> None:
        self._cache = cache
        self._scale = model.head_dim**-0.5
        self._workspace = workspace.kernels
        max_pages = cache.pages.num_pages + num_rows
        shape = DecodeTableShape(num_rows, workspace.num_programs, max_pages, cache.page_size)
        self._words = PinnedWords(shape.num_words, cache.pool.device)
        self._table = DecodeTable(self._words.device, shape)

    def plan(self, runs: PageRuns) -> None:
        """Queues the copy of a step's table."""
        self._words.send(self._table.shape.lay_out(runs.lengths, runs.indptr, runs.indices))

    def run(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Queues the attention of q, [rows, heads, head_dim], to out."""
        keys, values = self._cache.layer(layer)
        decode_attention(out, q, keys, values, self._table, self._workspace, self._scale, chained=True)
