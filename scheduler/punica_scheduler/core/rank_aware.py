"""Rank-aware placement: the GPU on which a request costs all requests together the least (CaraServe, algorithm 1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from punica_scheduler.core.decode_batch import DecodeBatch, decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_columns import GpuColumns
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.batch_columns import BatchColumns, Column, LoraColumns
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget

#: Seconds that a broken promise costs each request: far more than any step.
PENALTY_S = 1.0


@dataclass(frozen=True, slots=True)
class RankAwarePlacement(Placement):
    """The least cost first. Among empty GPUs the one with the longest known prefix; ties go to the highest UUID.

    With S the requests of a GPU that run and Q those that wait for their prefills, the cost of request r is
    |S + Q| * (dPre / typical answer + dDec + penalty), where dPre = PrePerf(Q + r) - PrePerf(Q),
    dDec = DecPerf(S + Q + r) - DecPerf(S + Q), and the penalty is due if DecPerf(S + Q + r) exceeds the tightest time
    per token promised to any of them.

    Where prefills run beside decodes, PrePerf(Q) is a sum and dPre is r's own prefill: its chunks, but no more of them
    than a typical answer has tokens. The penalty then looks at a time per token that includes the pauses by the chunks
    of r and of Q, in whichever order they run. The cost also counts turns: r and the prefills of Q wait for each other,
    in as many steps as the shorter of them takes.

    Where prefills run apart, PrePerf(Q) is one step for the whole queue, so a place in a queue is cheaper than the
    start of one. A request whose prefill may be under way counts among S: no newcomer can share its step. An empty GPU
    costs 0.
    """

    costs: StepCosts
    #: GPUs that have the adapter, or whose worker has it in host memory, go before all others.
    adapters_on_host: bool = False
    num_figures = 10

    def figures_of(self, gpu: GpuRecord) -> tuple[float, ...]:
        batch = decode_batch(gpu)
        step_s = self.costs.step_s(0, *batch)
        return *batch[:2], *batch.lora, *self._queue_of(gpu, batch, step_s), gpu.load_sums.tightest_s, step_s

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        columns = index.columns(self)
        num_rows, context, lora_rows, sum_ranks, max_rank, num_pages, *queue, tightest_s, before_s = columns
        batches = BatchColumns(num_rows, context, LoraColumns(lora_rows, sum_ranks, max_rank, num_pages))
        after_s = self.costs.decode_s(batches.with_row(record.num_tokens, record.adapter_size))
        prefill = self._prefill_costs(record, after_s, queue, columns, index.typical.num_answer)
        added_s = after_s - before_s + prefill.own_s
        promised_s = np.minimum(tightest_s, record.time_per_token_s or np.inf)
        cost = num_rows * (added_s + PENALTY_S * (prefill.token_s > promised_s)) + prefill.turns_s
        empty = (gpu for gpu in index.prefixes.knowing(record) if not gpu.working_set)  # these alone cost 0, all alike
        cost = columns.prefer(np.where(columns.with_room(record), cost, np.inf), empty)
        if not self.adapters_on_host or record.digest is None:
            return columns.in_order(cost)
        is_near = columns.mask(index.near(record))
        near, far = np.where(is_near, cost, np.inf), np.where(is_near, np.inf, cost)
        return chain(columns.in_order(near), columns.in_order(far))

    def _queue_of(self, gpu: GpuRecord, batch: DecodeBatch, step_s: float) -> tuple[float, float]:
        """Steps of the prefills that are due on the GPU, and seconds by which they pause its decodes.

        Where prefills run apart: tokens with which a newcomer's prefill can share a step, and 0.
        """
        prefills = gpu.load_sums.prefills
        if self.costs.prefills_apart:
            return prefills.num_tokens_from(gpu.next_step), 0.0
        num_steps, pause_s = 0, 0.0
        for due in prefills:
            num_chunks, num_tokens = _chunks(prefills.budget, due.num_cached, due.num_uncached)
            num_steps += num_chunks
            pause_s += num_chunks * max(0.0, self.costs.step_s(num_tokens, *batch) - step_s)
        return num_steps, pause_s

    def _prefill_costs(
        self, record: RequestRecord, after_s: Column, queue: list[Column], columns: GpuColumns, num_answer: float
    ) -> "_PrefillCosts":
        """The costs on each GPU, where decode steps with the request take ``after_s``. ``queue``: of ``_queue_of``."""
        if self.costs.prefills_apart:
            added_s = self.costs.queue_s(queue[0] + record.num_tokens) - self.costs.queue_s(queue[0])
            return _PrefillCosts(after_s, added_s / num_answer, 0.0)
        budget = columns[0].prefill_budget if len(columns) else WHOLE_PROMPTS  # all GPUs chunk alike
        num_chunks, num_tokens = _chunks(budget, 0, record.num_tokens)
        chunk_s = self.costs.prefill_s(num_tokens, record.adapter_size)
        num_due, due_pause_s = queue
        num_steps = num_due + num_chunks
        pause_s = (due_pause_s + num_chunks * np.maximum(0.0, chunk_s - after_s)) / num_steps
        return _PrefillCosts(
            # An answer is paused in no more steps than it has tokens.
            token_s=after_s + pause_s * np.minimum(1.0, num_steps / num_answer),
            own_s=chunk_s * min(1.0, num_chunks / num_answer),
            turns_s=2.0 * np.minimum(num_due, num_chunks) * chunk_s / num_answer,
        )


@dataclass(frozen=True, slots=True)
class _PrefillCosts:
    """A request's prefill on each GPU, in seconds for each token of a typical answer."""

    #: A decode step, with its share of the pauses by the prefills that are due and by the request's.
    token_s: Column
    #: By how much the request's prefill lengthens the answer of each request there.
    own_s: Column | float
    #: The turns that the request and the prefills before it give each other.
    turns_s: Column | float


def _chunks(budget: PrefillBudget, start: int, num_tokens: int) -> tuple[int, float]:
    """The steps of ``num_tokens`` of a prompt behind its first ``start``, and the tokens of a chunk at a prompt's start
    that takes as long as each of them.
    """
    num_steps = budget.num_steps(start, num_tokens)
    return num_steps, budget.equivalent_tokens(start, num_tokens, num_steps)
