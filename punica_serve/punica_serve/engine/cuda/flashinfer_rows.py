"""FlashInfer's attention for the prefill rows of one bucket, in the bucket's CUDA graph.

FlashInfer plans on the host before each step and copies its plan on the current stream; ``run`` reads it at fixed
addresses. Decodes stay with our own kernel, which measured better (docs/performance.md).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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
        self._host = _HostTables(shape.max_requests)

    def plan(self, runs: PageRuns, query_starts: Indices, page_size: int) -> None:
        """Plans a step's requests. Rows before the first one's are padding.

        The copy of the plan before must have ended, since its memory is written.
        """
        shape, tables, module = self._shape, self._host, self._module
        tables.write(runs, query_starts, shape.num_rows, page_size)
        self._wrapper.plan(
            tables.query_starts,
            tables.page_starts,
            torch.empty(0, dtype=torch.int32),  # the pages come with the step's inputs
            tables.last_page_tokens,
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
            seq_lens=tables.lengths,
        )

    def run(self, out: Tensor, q: Tensor, keys: Tensor, values: Tensor, *, pdl: bool) -> None:
        """Queues the launch. These kernels can't start before the one before them ends, so ``pdl`` changes nothing."""
        self._wrapper.run(q, (keys, values), out=out)


class _HostTables:
    """A step's requests in pinned memory: a copy from any other memory would make the host wait for the stream."""

    def __init__(self, max_requests: int) -> None:
        self.query_starts, self.page_starts = _pinned(max_requests + 1), _pinned(max_requests + 1)
        self.lengths, self.last_page_tokens = _pinned(max_requests), _pinned(max_requests)

    def write(self, runs: PageRuns, query_starts: Indices, num_rows: int, page_size: int) -> None:
        """Requests that the step lacks have no rows and no pages: their starts repeat the end."""
        _fill(self.query_starts, query_starts, rest=num_rows)
        _fill(self.page_starts, runs.starts, rest=int(runs.starts[-1]))
        _fill(self.lengths, runs.lengths, rest=0)
        _fill(self.last_page_tokens, (runs.lengths - 1) % page_size + 1, rest=0)


def _pinned(count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, pin_memory=True)


def _fill(table: Tensor, values: npt.NDArray[np.signedinteger[Any]], *, rest: int) -> None:
    words = table.numpy()
    words[: len(values)] = values
    words[len(values) :] = rest


def _zeros(count: int, device: torch.device) -> Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
