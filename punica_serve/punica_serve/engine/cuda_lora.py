"""The LoRA of one step shape on a GPU: beside the dense projections, on a stream of its own.

Decode is bound by bytes, and a dense projection leaves some of the memory's rate unused; LoRA takes it. Base and LoRA
write different tensors, and the operator that reads the one adds the other: no launch and no pass over memory for it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from punica_kernels.gpu.sgmv import expand, shrink
from punica_kernels.linear import linear
from punica_kernels.lora_table import LoraTable
from punica_serve.engine.lora_pool import LoraPool
from punica_serve.protocol import LoraGroup


class CudaLora:
    """Projections with LoRA, for CUDA graphs: all launches have the shape of the tables, whatever they hold."""

    def __init__(
        self, pool: LoraPool, tables: Mapping[LoraGroup, LoraTable], workspace: Tensor, side: torch.cuda.Stream
    ) -> None:
        self._pool = pool
        self._tables = tables
        #: Of `punica_kernels.gpu.sgmv.workspace_numel`; one for all groups, which take turns.
        self._workspace = workspace
        self._side = side

    def project(self, layer: int, group: LoraGroup, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
        """See ``LoraBatch.project``. The products that a norm reads next may come in parts, which it adds."""
        table = self._tables.get(group)
        in_parts = group in ("o", "down")
        if table is None:
            return linear(x, weight, in_parts=in_parts, chained=True), None
        pool = self._pool.groups[group]
        delta = x.new_empty(x.shape[0], weight.shape[0])
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            shrink(self._workspace, x, pool.a[:, layer], table)
            expand(delta, self._workspace, pool.b[:, layer], pool.out_offsets, table, accumulate=False)
        y = linear(x, weight, in_parts=in_parts, chained=True)
        main.wait_stream(self._side)
        return y, delta
