"""Paged attention against plain attention over each request's whole history."""

from typing import Any

import pytest
import torch
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.batching.step_rows import build_rows
from punica_serve.engine.torch_attention import TorchAttention
from punica_serve.protocol import Request, SamplingParams
from tiny_config import tiny_config

CPU = torch.device("cpu")
HEAD_DIM, LAYERS = 8, 2


def _model(heads: int, kv_heads: int, **values: Any) -> ModelConfig:
    return tiny_config(
        hidden_size=heads * HEAD_DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=HEAD_DIM,
        **values,
    )


def _cache(model: ModelConfig) -> KvCache:
    cache = KvCache(model, num_pages=32, page_size=4, dtype=torch.float32, device=CPU)
    cache.pool.fill_(torch.nan)  # what an earlier owner of the pages may have left
    return cache


def _reference(
    q: Tensor, k: Tensor, v: Tensor, first: int, window: int | None = None, soft_cap: float | None = None
) -> Tensor:
    """Rows are the tokens from ``first`` on; k and v [context, kv_heads, dim]."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
    rows, context = torch.arange(q.shape[0]) + first, torch.arange(k.shape[0])
    scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(context > rows[:, None], -torch.inf)
    if window is not None:
        scores = scores.masked_fill(context <= rows[:, None] - window, -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


class _History:
    """A sequence with the keys and values it has given so far, per layer."""

    def __init__(self, cache: KvCache, num_prompt: int, num_cached: int, heads: tuple[int, int]) -> None:
        self.sequence = Sequence.of(Request("r", 0, (1,) * num_prompt, SamplingParams()), 64)
        self.sequence.pages = cache.allocate(cache.pages_for(num_prompt + 1))
        self.sequence.num_cached = num_cached
        self.heads = heads
        self.keys = [torch.randn(num_cached, heads[1], HEAD_DIM) for _ in range(LAYERS)]
        self.values = [torch.randn(num_cached, heads[1], HEAD_DIM) for _ in range(LAYERS)]
        for layer in range(LAYERS):
            pool_keys, pool_values = cache.layer(layer)
            for token in range(num_cached):
                page, offset = self.sequence.pages[token // 4], token % 4
                pool_keys[page, offset] = self.keys[layer][token]
                pool_values[page, offset] = self.values[layer][token]


@pytest.mark.parametrize("windows", [(), (3, None), (5, 5), (4, 200)])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize("prefill", [None, (9, 0), (9, 5), (4, 0)])
def test_mixed_batch_equals_attention_over_each_history(
    heads: tuple[int, int], prefill: tuple[int, int] | None, soft_cap: float | None, windows: tuple[int | None, ...]
) -> None:
    torch.manual_seed(0)
    model = _model(*heads, windows=windows, attn_logit_softcapping=soft_cap)
    cache = _cache(model)
    decodes = [_History(cache, n, n - 1, heads) for n in (1, 4, 5, 13)]
    chunk = _History(cache, *prefill, heads) if prefill else None
    plan = StepPlan(
        (PrefillChunk(chunk.sequence, chunk.sequence.num_cached, len(chunk.sequence.token_ids), True),)
        if chunk
        else (),
        tuple(history.sequence for history in decodes),
    )
    batch = build_rows(plan, CPU)
    attention = TorchAttention(cache, model.spec)
    attention.plan(plan, batch)
    for layer in range(LAYERS):
        rows = batch.batch_len.num_rows
        q = torch.randn(rows, heads[0], HEAD_DIM)
        k, v = torch.randn(2, rows, heads[1], HEAD_DIM)
        for pool, new in zip(attention.cache(layer), (k, v), strict=True):
            pool[attention.slot_mapping // 4, attention.slot_mapping % 4] = new
        got = attention.run(layer, q)
        start = 0
        for history in ([chunk] if chunk else []) + decodes:
            first = history.sequence.num_cached
            end = start + history.sequence.num_uncached
            keys = torch.cat([history.keys[layer], k[start:end]])
            values = torch.cat([history.values[layer], v[start:end]])
            expected = _reference(q[start:end], keys, values, first, model.spec.layers[layer].window, soft_cap)
            torch.testing.assert_close(got[start:end], expected)
            start = end
        assert start == rows
