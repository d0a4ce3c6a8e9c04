"""Rank-aware placement: the GPU on which a request costs all requests together the least (CaraServe, algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from punica_scheduler.core.decode_batch import decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns

#: Seconds that a broken promise costs each request: far more than any step.
PENALTY_S = 1.0


@dataclass(frozen=True, slots=True)
class RankAwarePlacement(Placement):
    """The least cost first; of empty GPUs the one with the longest known prefix, and ties go to the highest UUID.

    With S the requests of a GPU that run and Q those that wait for their prefills, the cost of request r is
    |S + Q| * (dPre / typical answer + dDec + penalty), where dPre = PrePerf(Q + r) - PrePerf(Q),
    dDec = DecPerf(S + Q + r) - DecPerf(S + Q), and the penalty is due if DecPerf(S + Q + r) exceeds the tightest time
    per token promised to any of them. Where prefills run beside decodes, a step has
    one, so PrePerf(Q) is a sum and dPre is r's own prefill. Where they run apart, PrePerf(Q) is one step for the whole
    queue, so a place in a queue is cheaper than the start of one. A request whose prefill may be under way counts
    among S: no newcomer can share its step. An empty GPU costs 0.
    """

    costs: StepCosts
    #: GPUs that have the adapter, or whose worker has it in host memory, go before all others.
    adapters_on_host: bool = False
    num_figures = 9

    def figures_of(self, gpu: GpuRecord) -> tuple[float, ...]:
        load, batch = gpu.load_sums, decode_batch(gpu)
        num_queued = load.prefills.num_tokens_from(gpu.next_step) if self.costs.prefills_apart else 0
        return *batch[:2], *batch.lora, num_queued, load.tightest_s, self.costs.step_s(0, *batch)

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        columns = index.columns(self)
        num_rows, context, lora_rows, sum_ranks, max_rank, num_pages, num_queued, tightest_s, before_s = columns
        batches = BatchColumns(num_rows, context, LoraColumns(lora_rows, sum_ranks, max_rank, num_pages))
        after_s = self.costs.decode_s(batches.with_row(record.num_tokens, record.adapter_size))
        added_s = after_s - before_s + self._added_prefill_s(record, num_queued) / index.typical.num_answer
        promised_s = np.minimum(tightest_s, record.time_per_token_s or np.inf)
        cost = num_rows * (added_s + PENALTY_S * (after_s > promised_s))
        empty = (gpu for gpu in index.prefixes.knowing(record) if not gpu.working_set)  # these alone cost 0, all alike
        cost = columns.prefer(np.where(columns.with_room(record), cost, np.inf), empty)
        if not self.adapters_on_host or record.digest is None:
            return columns.in_order(cost)
        is_near = columns.mask(index.near(record))
        near, far = np.where(is_near, cost, np.inf), np.where(is_near, np.inf, cost)
        return chain(columns.in_order(near), columns.in_order(far))

    def _added_prefill_s(self, record: RequestRecord, num_queued: Column) -> Column | float:
        """dPre, in seconds."""
        if self.costs.prefills_apart:
            return self.costs.queue_s(num_queued + record.num_tokens) - self.costs.queue_s(num_queued)
        return self.costs.prefill_s(record.num_tokens, record.adapter_size)
