"""The LoRA of one step on a CPU: which rows use which pages, per group, and the projections that every layer makes."""

from collections.abc import Callable
from collections.abc import Sequence as Series

import torch
from torch import Tensor

from punica_kernels.segments import SegmentIndex
from punica_kernels.sgmv import add_embedding_lora, add_lora, sgmv_expand, sgmv_shrink
from punica_serve.base_model.lora_layout import LORA_PAGE_RANKS
from punica_serve.engine.adapters.layer_arrival import Arrival, ArrivalFailed, CpuArrival
from punica_serve.engine.adapters.lora_pool import AdapterPages, LoraPool
from punica_serve.engine.batching.step_rows import Segments
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.torch_exchange import TorchExchange
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.models.linear import Projected
from punica_serve.protocol import LoraGroup

#: Pages of an adapter on the device, by digest.
PagesOf = Callable[[str], AdapterPages]
#: The copy that a step with an adapter must wait for, by digest; None if there is none.
ArrivalOf = Callable[[str], Arrival | None]


class TorchLora:
    """LoRA weights from the pool's pages. ``plan`` once per step, ``apply`` in every layer."""

    def __init__(self, pool: LoraPool, pages_of: PagesOf, collectives: Collectives = SINGLE_RANK) -> None:
        self._pool = pool
        self._pages_of = pages_of
        self._collectives = collectives
        self._indices: dict[LoraGroup, SegmentIndex] = {}
        self._buffers: dict[LoraGroup, Tensor] = {}
        self._arrival: CpuArrival | None = None
        self._exchange: TorchExchange | None = None
        #: Whether the copy or the CPU processes for which the step had to wait have failed: its results are wrong.
        self.has_failed = False

    def plan(
        self,
        segments: Segments,
        arrival: Arrival | None = None,
        assist: AssistJob | None = None,
        *,
        sampled_rows: Series[int] = (),
    ) -> None:
        """``arrival``: layers wait for this copy. ``assist``: instead, CPU processes compute layers that have not
        arrived. ``sampled_rows``: those that get logits.

        Groups that no adapter of the batch touches are left out, so base-only batches run no LoRA at all.
        """
        self._arrival = arrival if isinstance(arrival, CpuArrival) and assist is None else None
        self._exchange = TorchExchange(assist) if assist is not None else None
        self.has_failed = False
        self._indices.clear()
        self._buffers.clear()
        owned = [self._pages_of(digest) if digest else {} for digest in segments.digests]
        for group, pool in self._pool.groups.items():
            pages = [own.get(group, []) for own in owned]
            if not any(pages):
                continue
            indptr = segments.rows_among(sampled_rows) if group == "head" else segments.indptr
            index = SegmentIndex.build(indptr, pages, device=pool.a.device)
            shape = (indptr[-1], pool.a.shape[2], index.max_pages * LORA_PAGE_RANKS)
            self._indices[group] = index
            self._buffers[group] = torch.empty(shape, dtype=torch.float32, device=pool.a.device)

    def apply(self, layer: int, group: LoraGroup, x: Tensor, base: Callable[[Tensor], Tensor]) -> Projected:
        """See ``LoraBatch.apply``. LoRA is added to the result of ``base`` in place, so no delta is left.

        Once the step ``has_failed`` it goes on without LoRA, since other ranks wait for its exchanges.
        """
        y = base(x)
        if not self.has_failed:
            try:
                self._add(layer, group, x, y)
                return Projected(y, None)
            except ArrivalFailed:
                self.has_failed = True
        if group in self._indices and self._pool.groups[group].divided_columns is not None:
            self._collectives.all_reduce(self._buffers[group])
        return Projected(y, None)

    def _add(self, layer: int, group: LoraGroup, x: Tensor, y: Tensor) -> None:
        """Adds to y what the adapters add. Raises ArrivalFailed if the copy or the CPU processes have failed."""
        index = self._indices.get(group)
        if self._exchange is not None and (added := self._exchange.run(layer, group, x)) is not None:
            y += added  # the step has no rows but the prefill's
        elif index is not None:
            if self._arrival is not None:
                self._arrival.wait(layer)
            self._project(layer, group, x, y, index)

    def _project(self, layer: int, group: LoraGroup, x: Tensor, y: Tensor, index: SegmentIndex) -> None:
        pool, v = self._pool.groups[group], self._buffers[group]
        if pool.divided_columns is None:
            add_lora(y, x, pool.a[:, layer], pool.b[:, layer], pool.out_offsets, index, v)
            return
        sgmv_shrink(v, x[:, pool.divided_columns], pool.a[:, layer], index)
        sgmv_expand(y, self._collectives.all_reduce(v), pool.b[:, layer], pool.out_offsets, index)

    def add_to_embedding(self, token_ids: Tensor, embedded: Tensor) -> None:
        """See ``LoraBatch.add_to_embedding``."""
        if (index := self._indices.get("embed")) is not None:
            pool, buffer = self._pool.groups["embed"], self._buffers["embed"]
            weights = (pool.a[:, 0], pool.b[:, 0])
            add_embedding_lora(embedded, token_ids, *weights, index, buffer, first_token=self._pool.first_token)

    def add_to_logits(self, hidden: Tensor, logits: Tensor) -> None:
        """See ``LoraBatch.add_to_logits``."""
        if (index := self._indices.get("head")) is not None:
            pool = self._pool.groups["head"]
            add_lora(logits, hidden, pool.a[:, 0], pool.b[:, 0], pool.out_offsets, index, self._buffers["head"])
