"""LoRA of a forward pass by SGMV's kernels, in Triton's interpreter, with streams that run in order."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import workspace_numel
from punica_kernels.lora_table import LoraTable, LoraTableShape
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.cuda import cuda_lora
from punica_serve.engine.cuda.cuda_lora import CudaLora
from punica_serve.models.llama import Llama
from punica_serve.models.model import ForwardBatch
from punica_serve.models.model_weights import dummy_weights
from tiny_config import tiny_config
from triton_interpreter import fast_interpreter

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is for machines without a GPU")
CPU = torch.device("cpu")
#: Segments: a prompt, a row without LoRA, two decodes.
INDPTR, PAGES, NUM_ROWS = [0, 18, 19, 20, 21], [[0, 1], [], [2], [3, 4]], 22


@pytest.fixture(autouse=True)
def _fast_interpreter() -> Iterator[None]:
    with fast_interpreter():
        yield


class _Stream:
    def wait_stream(self, other: "_Stream") -> None:
        pass


class _NoAttention:
    """Keys and values are appended, and the queries come back unchanged."""

    slot_mapping = torch.arange(NUM_ROWS)

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        return q.flatten(1)


@pytest.mark.parametrize("values", [{}, {"qk_norm": True, "is_gemma": True}])
def test_an_activation_that_expands_lora_gives_what_another_reads(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, bool]
) -> None:
    model = tiny_config(**values)
    side: Any = _Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", _Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    pool = LoraPool(model, num_pages=5, dtype=torch.float32, device=CPU)
    for group in pool.groups.values():
        group.a.normal_(std=0.3)
        group.b.normal_(std=0.3)
    shape = LoraTableShape(NUM_ROWS, len(PAGES) + 1, 2)
    words = np.empty(shape.num_words, np.int32)
    shape.fill(words, INDPTR, PAGES)
    tables: Any = dict.fromkeys(LORA_GROUPS, LoraTable(torch.from_numpy(words), shape))
    llama = Llama(model, dummy_weights(model, torch.float32, CPU))
    rows = torch.arange(NUM_ROWS)
    workspace = torch.full((max(workspace_numel(shape, slices) for slices in (1, 2, 3)),), torch.nan)

    def run(tables: Any) -> tuple[Tensor, Tensor]:
        cache = KvCache(model, num_pages=6, page_size=4, dtype=torch.float32, device=CPU)
        lora = CudaLora(pool, tables, workspace, side)
        return llama.forward(ForwardBatch(rows, rows, _NoAttention(cache), lora)).clone(), cache.pool

    base = run({})
    monkeypatch.setattr(cuda_lora, "activation_expands", lambda *_: False)
    expected = run(tables)
    assert not torch.allclose(base[0][:18], expected[0][:18], rtol=0.1)
    monkeypatch.setattr(cuda_lora, "activation_expands", lambda *_: True)
    for own, other in zip(run(tables), expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
