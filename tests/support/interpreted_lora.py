"""LoRA of a forward pass by the GPU's kernels in Triton's interpreter, on streams that run in order."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import workspace_numel
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda.cuda_lora import CudaLora

_CPU = torch.device("cpu")
#: Segments: a prompt, a row without LoRA, two decodes.
INDPTR, PAGES, NUM_ROWS = [0, 18, 19, 20, 21], [[0, 1], [], [2], [3, 4]], 22


class _Stream:
    def wait_stream(self, other: "_Stream") -> None:
        pass


class NoAttention:
    """Keys and values are appended, and the queries come back unchanged."""

    slot_mapping = torch.arange(NUM_ROWS)

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        return q.flatten(1)


def interpreted_lora(model: ModelConfig, monkeypatch: pytest.MonkeyPatch, *, has_adapters: bool = True) -> CudaLora:
    """The LoRA of random adapters for the rows above. The interpreter is the caller's."""
    side: Any = _Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    pool = LoraPool(model, num_pages=5, dtype=torch.float32, device=_CPU)
    for group in pool.groups.values():
        group.a.normal_(std=0.3)
        group.b.normal_(std=0.3)
    shape = LoraTableShape(NUM_ROWS, len(PAGES) + 1, 2)
    words = np.empty(shape.num_words, np.int32)
    shape.fill(words, INDPTR, PAGES)
    tables: Any = dict.fromkeys(LORA_GROUPS, LoraTable(torch.from_numpy(words), shape)) if has_adapters else {}
    workspace = torch.full((max(workspace_numel(shape, slices) for slices in (1, 2, 3)),), torch.nan)
    return CudaLora(pool, tables, workspace, side)
