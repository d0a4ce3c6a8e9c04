"""FlashInfer's attention for the prefill rows of one bucket, in the bucket's CUDA graph.

FlashInfer plans on the host before each step and copies its plan on the current stream; ``run`` reads it at fixed
addresses. Decodes stay with our own kernel, which measured better (docs/performance.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from punica_kernels.members import Indices
from punica_serve.engine.cuda.flashinfer_modules import Fa3Module
from punica_serve.engine.cuda.step_pages import PageRuns

#: Splits of long contexts, and the plan of a step: two orders of magnitude above what one prefill takes.
_FLOAT_BYTES, _PLAN_BYTES = 64 << 20, 2 << 20


class FlashInferMemory:
    """Workspaces that the buckets of one engine share: they run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.floats = torch.zeros(_FLOAT_BYTES, dtype=torch.uint8, device=device)
        self.plan = torch.zeros(_PLAN_BYTES, dtype=torch.uint8, device=device)


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """The capacity of a bucket's prefills, and what all their layers with one window have in common."""

    max_requests: int
    num_rows: int
    heads: int
    kv_heads: int
    scale: float


class FlashInferRows:
    """Prefill rows under one window: ``plan`` a step, then ``run`` every layer."""

    def __init__(self, shape: PrefillShape, module: Fa3Module, kv_pages: Tensor, memory: FlashInferMemory) -> None:
        """``kv_pages``: int32, the step's pages, where the step's inputs are copied to."""
        import flashinfer

        self._shape, self._module = shape, module
        tables = (_zeros(shape.max_requests + 1, kv_pages.device) for _ in range(2))
        self._wrapper: Any = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            memory.floats,
            use_cuda_graph=True,
            qo_indptr_buf=next(tables),
            paged_kv_indptr_buf=next(tables),
            paged_kv_indices_buf=kv_pages,
            paged_kv_last_page_len_buf=_zeros(shape.max_requests, kv_pages.device),
            backend="fa3",
        )
        self._wrapper.reset_workspace_buffer(memory.floats, memory.plan)

    def plan(self, runs: PageRuns, query_starts: Indices, first_page: int, page_size: int) -> None:
        """``first_page``: the index of these requests' first page among the step's. Rows before the first are padding.

        The copy of the plan before must have ended, since its memory is written.
        """
        shape, missing = self._shape, self._shape.max_requests - len(runs.lengths)
        lengths = np.pad(runs.lengths, (0, missing))
        # Requests that the step lacks have no rows: their starts repeat the last one.
        starts = np.pad(np.asarray(query_starts), (0, missing), constant_values=shape.num_rows)
        pages = np.pad(runs.starts + first_page, (0, missing), mode="edge")
        last_page_tokens = np.where(lengths > 0, (lengths - 1) % page_size + 1, 0)
        host = [torch.from_numpy(table.astype(np.int32)) for table in (starts, pages, last_page_tokens, lengths)]
        module = self._module
        self._wrapper.plan(
            host[0],
            host[1],
            torch.empty(0, dtype=torch.int32),  # the pages come with the step's inputs
            host[2],
            shape.heads,
            shape.kv_heads,
            module.head_dim,
            page_size,
            causal=True,
            sm_scale=shape.scale,
            window_left=-1 if module.window is None else module.window - 1,
            logits_soft_cap=module.soft_cap,
            q_data_type=module.dtype,
            kv_data_type=module.dtype,
            seq_lens=host[3],
        )

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, pdl: bool) -> None:
        """Queues the launch. These kernels can't start before the one before them ends, so ``pdl`` changes nothing."""
        self._wrapper.run(q, (keys, values), out=out)


def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
