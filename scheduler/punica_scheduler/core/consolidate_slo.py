"""Punica's packing under CaraServe's promises: few GPUs, as long as everyone's latency holds.

Decode steps alone do not tell the time per token, since prefills run between and beside them. A GPU with n requests of
typical answers of L tokens has n / L prefills in a step once each that ends is replaced, so its mean step is
(1 - n / L) * decode + n / L * (decode with a prefill); where prefills run apart, the two run one after the other. A
promise holds if that and a margin stay within it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_columns import GpuColumns, batch_of
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.rank_aware import in_order
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_scheduler.core.typical_request import TypicalRequest
from punica_serve.performance.batch_columns import BatchColumns, Column

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ConsolidateSloPlacement(Placement):
    """The largest working set on which all promises hold; where they hold nowhere, the smallest working set."""

    costs: StepCosts
    #: Share by which a predicted time must stay below the promise.
    margin: float = 0.15

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        columns = index.columns()
        has_room = columns.room > record.num_tokens
        holds = has_room & self._holds(record, columns, index.typical)
        packed = in_order(np.where(holds, -columns.batches.num_rows, np.inf), columns)
        spread = in_order(np.where(has_room & ~holds, columns.batches.num_rows, np.inf), columns)
        return chain(packed, spread)

    def keeps_promises(self, gpu: GpuRecord, newcomers: Sequence[RequestRecord], index: GpuIndex) -> bool:
        """Times per token alone count: a request that moves has mostly had its first token."""
        batches, tightest_s = batch_of(gpu), gpu.load_sums.tightest_s
        for record in newcomers:
            batches = batches.with_row(record.num_tokens, record.adapter_size)
            tightest_s = min(tightest_s, record.time_per_token_s or tightest_s)
        return bool(self._token_s(batches, index.typical)[0] <= tightest_s)

    def _holds(self, record: RequestRecord, columns: GpuColumns, typical: TypicalRequest) -> _Flags:
        """Whether everyone's promises would hold on each GPU with this request."""
        batches = columns.batches.with_row(record.num_tokens, record.adapter_size)
        promised_s = np.minimum(columns.tightest_s, record.time_per_token_s or np.inf)
        holds: _Flags = self._token_s(batches, typical) <= promised_s
        slo = record.request.slo
        if slo is not None and slo.first_token_s is not None and not record.num_generated:
            holds &= self._wait_s(record, columns, batches, typical) * (1.0 + self.margin) <= slo.first_token_s
        return holds

    def _token_s(self, batches: BatchColumns, typical: TypicalRequest) -> Column:
        """Seconds from one token of a request to its next, with the margin."""
        share = np.minimum(batches.num_rows / typical.num_answer, 1.0)
        mixed_s = self.costs.mixed_s(batches, typical.num_prompt)
        return ((1.0 - share) * self.costs.decode_s(batches) + share * mixed_s) * (1.0 + self.margin)

    def _wait_s(
        self, record: RequestRecord, columns: GpuColumns, batches: BatchColumns, typical: TypicalRequest
    ) -> Column:
        """Seconds until the request's first token on each GPU; ``batches`` are with it."""
        if self.costs.prefills_apart:
            # The step under way ends, be it the decodes', and one more step prefills the queue and this request.
            return self.costs.decode_s(columns.batches) + self.costs.queue_s(
                columns.num_prefill_tokens + record.num_tokens
            )
        # One prefill runs in a step: those that came before go first.
        return (columns.num_prefilling + 1) * self.costs.mixed_s(batches, typical.num_prompt)
