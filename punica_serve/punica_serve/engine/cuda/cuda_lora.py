"""The LoRA of one bucket on a GPU: beside the dense projections, on a stream of its own.

Decode is bound by bytes, and a dense projection leaves some of the memory bandwidth unused; LoRA uses it. Base and LoRA
write different tensors, and the operator that reads one adds the other: it costs no launch and no pass over memory.

With more rows the library's projections leave no room beside them, and a delta costs more to write and to read than to
compute: the activation of gate and up expands their LoRA itself.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import expand, shrink, shrink_embedding, shrunk_numel, workspace_numel
from punica_kernels.gpu.sgmv_config import activation_expands
from punica_kernels.lora_table import LoraTable
from punica_kernels.low_rank import LowRankDelta
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.cuda.cuda_exchange import BucketExchange
from punica_serve.engine.cuda.layer_gates import LayerGates
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from punica_serve.models.linear import Projected
from punica_serve.protocol import LoraGroup


class CudaLora:
    """Projections with LoRA, for CUDA graphs: launches depend on the shape of the tables, not on their contents."""

    def __init__(
        self,
        pool: LoraPool,
        tables: Mapping[LoraGroup, LoraTable],
        workspace: Tensor,
        side: torch.cuda.Stream,
        gates: LayerGates | None = None,
        exchange: BucketExchange | None = None,
        collectives: Collectives = SINGLE_RANK,
    ) -> None:
        """``gates``: in steps with a prefill, whose adapter may still be arriving. ``exchange``: instead, if CPU
        processes compute what its missing layers add. ``collectives``: of ranks that divide A.
        """
        self._pool = pool
        self._tables = tables
        #: float32 [`punica_kernels.gpu.sgmv.workspace_numel`], shared by the groups, which run in turns.
        self._workspace = workspace
        self._side = side
        self._gates = gates
        self._exchange = exchange
        self._collectives = collectives
        #: The group that a layer runs first.
        self._first_group = next(iter(pool.groups))

    def apply(self, layer: int, group: LoraGroup, x: Tensor, base: Callable[[Tensor], Tensor]) -> Projected:
        """See ``LoraBatch.apply``."""
        table = self._tables.get(group)
        if table is None:
            return Projected(base(x), None)
        pool = self._pool.groups[group]
        delta = None if self.activation_expands(group) else x.new_empty(x.shape[0], pool.out_offsets[-1])
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        if self._gates is not None and group == self._first_group:
            self._gates.wait(layer, self._side)
        with torch.cuda.stream(self._side):
            if self._exchange is not None:
                self._exchange.send(layer, group, x)
            # Pages that have not arrived hold anything; what becomes of them in the prefill's rows is replaced.
            v = self.shrink(layer, group, x)
            if delta is not None:
                self.expand(layer, group, v, delta)
                if self._exchange is not None:
                    self._exchange.receive(layer, group, delta)
        y = base(x)
        main.wait_stream(self._side)
        low_rank = LowRankDelta(v, pool.b[:, layer], table) if delta is None else None
        return Projected(y, delta, low_rank)

    def activation_expands(self, group: LoraGroup) -> bool:
        """Whether ``apply`` leaves the expand of a group with LoRA to the activation."""
        if group != "gate_up" or self._exchange is not None:  # CPU processes replace rows of a whole delta
            return False
        return activation_expands(self._tables[group].shape, self._pool.groups[group].b.element_size())

    def shrink(self, layer: int, group: LoraGroup, x: Tensor) -> Tensor:
        """x A of all ranks together, float32 [workspace_numel]. Values that the table does not name are undefined."""
        pool, table = self._pool.groups[group], self._tables[group]
        a = pool.a[:, layer]
        if pool.divided_columns is None:
            shrink(self._workspace, x, a, table)
            return self._workspace
        numel = workspace_numel(table.shape, a.shape[1])
        v = self._collectives.empty(torch.Size([numel]), torch.float32, x.device)
        shrink(v, x[:, pool.divided_columns], a, table)
        return self._collectives.all_reduce(v[: shrunk_numel(table.shape, a.shape[1])])

    def expand(self, layer: int, group: LoraGroup, v: Tensor, delta: Tensor) -> None:
        """Writes v B to ``delta`` [rows, out], with zeros for rows without LoRA."""
        pool = self._pool.groups[group]
        expand(delta, v, pool.b[:, layer], pool.out_offsets, self._tables[group], accumulate=False)

    def add_to_embedding(self, token_ids: Tensor, embedded: Tensor) -> None:
        """See ``LoraBatch.add_to_embedding``."""
        if (table := self._tables.get("embed")) is not None:
            pool = self._pool.groups["embed"]
            shrink_embedding(self._workspace, token_ids, pool.a[:, 0], table, first_token=self._pool.first_token)
            expand(embedded, self._workspace, pool.b[:, 0], pool.out_offsets, table, accumulate=True)

    def add_to_logits(self, hidden: Tensor, logits: Tensor) -> None:
        """See ``LoraBatch.add_to_logits``."""
        if (table := self._tables.get("head")) is not None:
            pool = self._pool.groups["head"]
            shrink(self._workspace, hidden, pool.a[:, 0], table)
            expand(logits, self._workspace, pool.b[:, 0], pool.out_offsets, table, accumulate=True)
