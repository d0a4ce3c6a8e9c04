"""Paged attention in plain torch: the CPU's.

``plan(step, batch)`` once per step turns pages into index tensors; ``run`` once per layer attends to what the KvCache
holds, the step's own keys and values included, prefill and decode each on their own rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.step_planner import StepPlan
from punica_serve.engine.batching.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class _PrefillPlan:
    num_rows: int
    #: int64 [pages of the request]
    pages: Tensor
    #: bool [rows, context]: what each row may see.
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _DecodePlan:
    #: int64 [decodes * most pages of one request]. Short requests are padded with a page of their own: a stranger's
    #: may hold NaN, which no mask would keep out of the sums.
    pages: Tensor
    #: Of the gathered keys and of the values: [decodes, context, kv_heads, head_dim].
    shape: tuple[int, ...]
    #: bool [decodes, 1, 1, most pages * page_size]: the tokens that are there.
    mask: Tensor


class TorchAttention:
    """Attention of one step. ``plan`` before ``run``; a new plan replaces the old one."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._prefill: _PrefillPlan | None = None
        self._decode: _DecodePlan | None = None
        #: int64 [rows]: page * page_size + offset, where each row's key and value go.
        self.slot_mapping = torch.empty(0, dtype=torch.int64)

    def plan(self, step: StepPlan, batch: StepRows) -> None:
        """Reads the pages of the step's sequences. They must have room for the step's rows."""
        self.slot_mapping = self._slot_mapping_of(step, batch)
        self._prefill = self._plan_prefill(step) if step.prefill else None
        self._decode = self._plan_decode(step) if step.decodes else None

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """q [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        keys, values = self._cache.layer(layer)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        num_prefill = self._prefill.num_rows if self._prefill else 0
        if self._prefill:
            out[:num_prefill] = _attend_prefill(self._prefill, q[:num_prefill], keys, values)
        if self._decode:
            out[num_prefill:] = _attend_decode(self._decode, q[num_prefill:], keys, values)
        return out.flatten(1)

    def _slot_mapping_of(self, step: StepPlan, batch: StepRows) -> Tensor:
        """int64 [rows]: page * page_size + offset, where each row's key and value go."""
        size, num_prefill = self._cache.page_size, batch.batch_len.num_prefill_rows
        pages = torch.empty_like(batch.positions)
        if step.prefill:
            own_pages = self._tensor(step.prefill.sequence.pages)
            pages[:num_prefill] = own_pages[batch.positions[:num_prefill] // size]
        pages[num_prefill:] = self._tensor([seq.pages[seq.num_cached // size] for seq in step.decodes])
        return pages * size + batch.positions % size

    def _plan_prefill(self, step: StepPlan) -> _PrefillPlan:
        chunk = step.prefill
        assert chunk is not None
        pages = self._tensor(chunk.sequence.pages[: self._cache.pages_for(chunk.end)])
        rows = torch.arange(chunk.start, chunk.end, device=pages.device)
        context = torch.arange(chunk.end, device=pages.device)
        return _PrefillPlan(chunk.end - chunk.start, pages, context <= rows[:, None])

    def _plan_decode(self, step: StepPlan) -> _DecodePlan:
        lengths = self._tensor([sequence.num_tokens for sequence in step.decodes])
        tables = [seq.pages[: self._cache.pages_for(seq.num_tokens)] for seq in step.decodes]
        num_pages = max(map(len, tables))
        pages = self._tensor([page for table in tables for page in table + table[:1] * (num_pages - len(table))])
        context = torch.arange(num_pages * self._cache.page_size, device=pages.device)
        shape = (len(tables), len(context), *self._cache.pool.shape[-2:])
        return _DecodePlan(pages, shape, (context < lengths[:, None])[:, None, None])

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._cache.pool.device)


def _attend_prefill(plan: _PrefillPlan, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    context = plan.mask.shape[1]
    k = keys.index_select(0, plan.pages).flatten(0, 1)[:context].transpose(0, 1)
    v = values.index_select(0, plan.pages).flatten(0, 1)[:context].transpose(0, 1)
    out = scaled_dot_product_attention(q.transpose(0, 1)[None], k[None], v[None], plan.mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def _attend_decode(plan: _DecodePlan, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    k = keys.index_select(0, plan.pages).view(plan.shape).transpose(1, 2)
    v = values.index_select(0, plan.pages).view(plan.shape).transpose(1, 2)
    return scaled_dot_product_attention(q[:, :, None], k, v, plan.mask, enable_gqa=True)[:, :, 0]
