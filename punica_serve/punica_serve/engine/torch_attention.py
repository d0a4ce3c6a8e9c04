"""Paged attention in plain torch: the CPU's.

``plan(step, batch)`` once per step turns pages into index tensors; ``run`` once per layer attends to what the KvCache
holds, the step's own keys and values included, prefill and decode each on their own rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from punica_serve.base_model.model_spec import ModelSpec
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.batching.step_rows import StepRows


@dataclass(frozen=True, slots=True)
class _PrefillPlan:
    #: Rows of the step.
    rows: slice
    #: int64 [pages of the request], from the first that a row sees on.
    pages: Tensor
    #: bool [rows, context]: what each row may see.
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _DecodePlan:
    #: int64 [decodes * most pages of one request]. Short requests are padded with a page of their own: a stranger's
    #: may hold NaN, which no mask would keep out of the sums.
    pages: Tensor
    #: Shape of the gathered keys, and of the values: [decodes, context, kv_heads, head_dim].
    shape: tuple[int, ...]
    #: bool [decodes, 1, 1, most pages * page_size]: the tokens that are there.
    mask: Tensor


class TorchAttention:
    """Attention of one step. ``plan`` before ``run``; a new plan replaces the old one."""

    def __init__(self, cache: KvCache, spec: ModelSpec) -> None:
        self._cache = cache
        self._spec = spec
        self._num_prefill_rows = 0
        #: By the window of the layers that they serve.
        self._prefills: dict[int | None, list[_PrefillPlan]] = {}
        self._decode: dict[int | None, _DecodePlan] = {}
        #: int64 [rows]: page * page_size + offset, where each row's key and value go.
        self.slot_mapping = torch.empty(0, dtype=torch.int64)

    def plan(self, step: StepPlan, batch: StepRows) -> None:
        """Reads the pages of the step's sequences. They must have room for the step's rows."""
        self.slot_mapping = self._slot_mapping_of(step, batch)
        self._num_prefill_rows = batch.batch_len.num_prefill_rows
        windows, starts = self._spec.windows, batch.batch_len.prefill_starts
        chunks = list(zip(step.prefills, starts, strict=True))
        self._prefills = {window: [self._plan_prefill(*chunk, window) for chunk in chunks] for window in windows}
        self._decode = {window: self._plan_decode(step.decodes, window) for window in windows} if step.decodes else {}

    def cache(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer: strided views [pages, page_size, kv_heads, head_dim]."""
        return self._cache.layer(layer)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """q [rows, heads, head_dim] -> [rows, heads * head_dim]."""
        keys, values = self._cache.layer(layer)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        window, num_prefill = self._spec.layers[layer].window, self._num_prefill_rows
        for prefill in self._prefills[window]:
            out[prefill.rows] = self._attend_prefill(prefill, q[prefill.rows], keys, values)
        if decode := self._decode.get(window):
            out[num_prefill:] = self._attend_decode(decode, q[num_prefill:], keys, values)
        return out.flatten(1)

    def _slot_mapping_of(self, step: StepPlan, batch: StepRows) -> Tensor:
        """int64 [rows]: page * page_size + offset, where each row's key and value go."""
        size, num_prefill = self._cache.page_size, batch.batch_len.num_prefill_rows
        pages = torch.empty_like(batch.positions)
        for chunk, start in zip(step.prefills, batch.batch_len.prefill_starts, strict=True):
            rows = slice(start, start + chunk.num_tokens)
            pages[rows] = self._tensor(chunk.sequence.pages)[batch.positions[rows] // size]
        pages[num_prefill:] = self._tensor([seq.pages[seq.num_cached // size] for seq in step.decodes])
        return pages * size + batch.positions % size

    def _plan_prefill(self, chunk: PrefillChunk, first_row: int, window: int | None) -> _PrefillPlan:
        skipped = self._skipped_pages(chunk.start, window)
        pages = self._tensor(chunk.sequence.pages[skipped : self._cache.pages_for(chunk.end)])
        positions = torch.arange(chunk.start, chunk.end, device=pages.device)[:, None]
        context = torch.arange(skipped * self._cache.page_size, chunk.end, device=pages.device)
        mask = context <= positions
        if window is not None:
            mask &= context > positions - window
        return _PrefillPlan(slice(first_row, first_row + chunk.num_tokens), pages, mask)

    def _plan_decode(self, decodes: tuple[Sequence, ...], window: int | None) -> _DecodePlan:
        size = self._cache.page_size
        skipped = [self._skipped_pages(sequence.num_cached, window) for sequence in decodes]
        tables = [
            seq.pages[first : self._cache.pages_for(seq.num_tokens)]
            for seq, first in zip(decodes, skipped, strict=True)
        ]
        num_pages = max(map(len, tables))
        pages = self._tensor([page for table in tables for page in table + table[:1] * (num_pages - len(table))])
        context = torch.arange(num_pages * size, device=pages.device)
        shape = (len(tables), len(context), *self._cache.pool.shape[-2:])
        last = self._tensor([seq.num_cached - first * size for seq, first in zip(decodes, skipped, strict=True)])[
            :, None
        ]
        mask = context <= last
        if window is not None:
            mask &= context > last - window
        return _DecodePlan(pages, shape, mask[:, None, None])

    def _skipped_pages(self, first_row: int, window: int | None) -> int:
        """Pages before the first token that the row at this position sees."""
        return 0 if window is None else max(0, first_row - window + 1) // self._cache.page_size

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._cache.pool.device)

    def _attend_prefill(self, plan: _PrefillPlan, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        context = plan.mask.shape[1]
        k = keys.index_select(0, plan.pages).flatten(0, 1)[:context].transpose(0, 1)
        v = values.index_select(0, plan.pages).flatten(0, 1)[:context].transpose(0, 1)
        return self._attend(q.transpose(0, 1)[None], k[None], v[None], plan.mask)[0].transpose(0, 1)

    def _attend_decode(self, plan: _DecodePlan, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        k = keys.index_select(0, plan.pages).view(plan.shape).transpose(1, 2)
        v = values.index_select(0, plan.pages).view(plan.shape).transpose(1, 2)
        return self._attend(q[:, :, None], k, v, plan.mask)[:, :, 0]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """q [N, heads, rows, head_dim], k and v [N, kv_heads, context, head_dim] -> like q."""
        scale, cap = self._spec.attention_scale, self._spec.attention_soft_cap
        if cap is None:
            return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)
        # Torch has no soft cap.
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        scores = torch.tanh(q @ k.transpose(2, 3) * (scale / cap)) * cap
        return scores.masked_fill(~mask, -torch.inf).softmax(-1, dtype=torch.float32).to(q.dtype) @ v
