"""Rank-aware placement: the GPU on which a request costs all requests together the least (CaraServe, algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_columns import GpuColumns
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.batch_columns import Column

#: Seconds that a broken promise costs each request: far more than any step.
PENALTY_S = 1.0


@dataclass(frozen=True, slots=True)
class RankAwarePlacement(Placement):
    """The least cost first; ties go to the highest UUID.

    With S the requests of a GPU that run and Q those that are not prefilled yet, the cost of request r is
    |S + Q| * (dPre / typical answer + dDec + penalty), where dPre = PrePerf(Q + r) - PrePerf(Q),
    dDec = DecPerf(S + Q + r) - DecPerf(S + Q), and the penalty is due if DecPerf(S + Q + r) exceeds the tightest time
    per token promised to any of them. Where prefills run beside decodes, a step has
    one, so PrePerf(Q) is a sum and dPre is r's own prefill. Where they run apart, PrePerf(Q) is one step for the whole
    queue, so a place in a queue is cheaper than the start of one. An empty GPU costs 0.
    """

    costs: StepCosts

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        columns = index.columns()
        cost = self._cost(record, columns, index.typical.num_answer)
        return in_order(np.where(columns.room > record.num_tokens, cost, np.inf), columns)

    def _cost(self, record: RequestRecord, columns: GpuColumns, num_answer: float) -> Column:
        size = record.adapter_size
        before = columns.batches
        after_s = self.costs.decode_s(before.with_row(record.num_tokens, size))
        added_s = after_s - self.costs.decode_s(before) + self._added_prefill_s(record, columns) / num_answer
        promised_s = np.minimum(columns.tightest_s, record.time_per_token_s or np.inf)
        cost: Column = before.num_rows * (added_s + PENALTY_S * (after_s > promised_s))
        return cost

    def _added_prefill_s(self, record: RequestRecord, columns: GpuColumns) -> Column | float:
        """dPre, in seconds."""
        if self.costs.prefills_apart:
            queued = columns.num_prefill_tokens
            return self.costs.queue_s(queued + record.num_tokens) - self.costs.queue_s(queued)
        return self.costs.prefill_s(record.num_tokens, record.adapter_size)


def in_order(cost: Column, columns: GpuColumns) -> Iterator[GpuRecord]:
    """GPUs of finite cost from the least up; of equals, the highest UUID first.

    The first mostly has room, so only a second look sorts them.
    """
    if not len(cost):
        return
    best = int(cost.argmin())
    if cost[best] == np.inf:
        return
    yield columns[best]
    for place in np.argsort(cost, kind="stable")[1:]:
        if cost[place] == np.inf:
            return
        yield columns[int(place)]
