"""Punica's packing under CaraServe's promises: few GPUs, as long as everyone's latency holds.

Decode steps alone do not tell the time per token, since prefills run with them. So prefills are predicted apart from
decodes: when each that waits on a GPU gives its first token (``prefill_effects``), and what it takes from the slack of
those who decode (``slack``). A request goes to the largest working set on which every promise still holds: of those who
decode, of those who wait for their prefills, and its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from punica_scheduler.core.decode_batch import DecodeBatch, decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.prefill_effects import PrefillStep, coming_prefills
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.lora_load import NO_ADAPTER

#: GPUs that are asked in full, the largest working sets first, before a request spreads: no event may take long.
MAX_ASKED = 32


@dataclass(frozen=True, slots=True)
class ConsolidateSloPlacement(Placement):
    """The largest working set on which all promises hold; where they hold nowhere, the smallest working set. Ties go to
    the longest known prefix, then to the highest UUID.
    """

    costs: StepCosts
    #: Share by which predicted times are taken to be longer.
    margin: float = 0.15
    num_figures = 2

    def figures_of(self, gpu: GpuRecord) -> tuple[float, ...]:
        """Working set, and the least slack at clock 0."""
        step_s = self.costs.step_s(0, *decode_batch(gpu)) * (1.0 + self.margin)
        return len(gpu.working_set), gpu.load_sums.slack.least_at_0(step_s)

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        columns = index.columns(self)
        num_requests, slack_at_0 = columns
        now_s = index.now_ns / 1e9
        has_room = columns.with_room(record)
        may_hold = has_room & (slack_at_0 >= now_s + self._least_pause_s(record))
        knowing = index.prefixes.knowing(record)
        packed = set()
        largest_first = columns.prefer(np.where(may_hold, -num_requests, np.inf), knowing)
        for gpu in islice(columns.in_order(largest_first), 0 if _is_late(record, now_s) else MAX_ASKED):
            forecast = self._forecast(gpu, (record,), now_s)
            if forecast.slack_s < 0.0:
                columns.refuse(gpu)
            elif forecast.keeps_promises_of_newcomers:
                packed.add(gpu)
                yield gpu
        smallest_first = columns.prefer(np.where(has_room, num_requests, np.inf), knowing)
        for gpu in columns.in_order(smallest_first):
            if gpu not in packed:
                yield gpu

    def keeps_promises(self, gpu: GpuRecord, newcomers: Sequence[RequestRecord], index: GpuIndex) -> bool:
        """Whether every promise of those on the GPU and of the newcomers would hold, with the margin."""
        forecast = self._forecast(gpu, newcomers, index.now_ns / 1e9)
        return forecast.slack_s >= 0.0 and forecast.keeps_promises_of_newcomers

    def _forecast(self, gpu: GpuRecord, newcomers: Sequence[RequestRecord], now_s: float) -> "_Forecast":
        factor = 1.0 + self.margin
        batch = _batch_with(gpu, newcomers)
        step_s = self.costs.step_s(0, *batch) * factor
        slack_s = gpu.load_sums.slack.least_at_0(step_s) - now_s
        if slack_s < 0.0:
            return _Forecast(now_s, step_s, slack_s)
        prefills = [
            PrefillStep(records, ends_in_s * factor, pause_s * factor)
            for records, ends_in_s, pause_s in coming_prefills(gpu, newcomers, batch, self.costs, now_s)
        ]
        return _Forecast(now_s, step_s, slack_s - sum([prefill.pause_s for prefill in prefills]), prefills)

    def _least_pause_s(self, record: RequestRecord) -> float:
        """A new request holds up those who decode for no less than this."""
        if not self.costs.prefills_apart:
            return 0.0
        return self.costs.prefill_s(record.num_tokens, NO_ADAPTER) * (1.0 + self.margin)


def _is_late(record: RequestRecord, now_s: float) -> bool:
    """Whether its first token has been due already, so that no GPU can keep its promise."""
    return record.first_token_due_s is not None and record.first_token_due_s < now_s


def _batch_with(gpu: GpuRecord, newcomers: Sequence[RequestRecord]) -> DecodeBatch:
    """The GPU's working set and the newcomers as one batch of decodes."""
    num_rows, num_context_tokens, lora = decode_batch(gpu)
    for record in newcomers:
        num_context_tokens += record.num_tokens
        if record.digest is not None:
            lora = lora.with_row(record.adapter_size, is_new=record.digest not in gpu.load_sums.lora)
    return DecodeBatch(num_rows + len(newcomers), num_context_tokens, lora)


class _Forecast(NamedTuple):
    """A GPU with newcomers, the margin counted."""

    now_s: float
    #: A step of all as decodes.
    step_s: float
    #: The least slack that those who decode have left; negative where a promise breaks.
    slack_s: float
    prefills: Sequence[PrefillStep] = ()

    @property
    def keeps_promises_of_newcomers(self) -> bool:
        """Whether those that have their prefills before them keep theirs."""
        pauses_s = 0.0
        for records, ends_in_s, pause_s in reversed(self.prefills):
            if not all(self._holds(record, self.now_s + ends_in_s, pauses_s) for record in records):
                return False
            pauses_s += pause_s
        return True

    def _holds(self, record: RequestRecord, first_s: float, pauses_s: float) -> bool:
        """Whether a request that gets its next token at ``first_s`` keeps its promises.

        Its other tokens take a step each, and the pauses for later prefills.
        """
        first_due_s = record.first_token_due_s
        if first_due_s is not None and first_s > first_due_s:
            return False
        num_left = record.num_answer - record.num_generated - 1
        last_due_s = record.last_token_due_s(first_s)
        return last_due_s is None or num_left <= 0 or first_s + num_left * self.step_s + pauses_s <= last_due_s
