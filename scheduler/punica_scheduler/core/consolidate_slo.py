"""Punica's packing under CaraServe's promises: few GPUs, as long as everyone's latency holds.

Decode steps alone do not tell the time per token, since prefills run with them. So prefills are predicted apart from
decodes: when each that waits on a GPU gives its first token (``prefill_effects``), and what it takes from the slack of
those who decode (``slack``). A request goes to the largest working set on which every promise still holds: of those who
decode, of those who wait for their prefills, and its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np

from punica_scheduler.core.decode_batch import DecodeBatch, decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.prefill_effects import PrefillPause, coming_prefills, pause_within
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
                if record.num_tokens <= gpu.prefill_budget.tokens:  # not for what only a longer prompt would break
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
        slack = gpu.load_sums.slack
        slack_s = slack.least_at_0(step_s) - now_s
        if slack_s < 0.0:
            return _Forecast(now_s, step_s, slack_s)
        pauses = [
            PrefillPause(records, ends_in_s * factor, pause_s * factor, *steps)
            for records, ends_in_s, pause_s, *steps in coming_prefills(gpu, newcomers, batch, self.costs, now_s)
        ]
        slack_s -= sum([pause.pause_s for pause in pauses])
        if slack_s < 0.0:  # some may have their last tokens before the last pauses
            slack_s = slack.least_after_pauses(step_s, partial(pause_within, pauses)) - now_s
        return _Forecast(now_s, step_s, slack_s, pauses)

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
    pauses: Sequence[PrefillPause] = ()

    @property
    def keeps_promises_of_newcomers(self) -> bool:
        """Whether those that have their prefills before them keep theirs."""
        later_s = 0.0
        for place in reversed(range(len(self.pauses))):
            pause = self.pauses[place]
            if not all(self._holds(record, place, later_s) for record in pause.records):
                return False
            later_s += pause.pause_s
        return True

    def _holds(self, record: RequestRecord, place: int, later_s: float) -> bool:
        """Whether a request that gets its next token at the end of this pause keeps its promises.

        Its other tokens take a step each, and the pauses for later prefills, ``later_s`` if it is there for them all.
        """
        pause = self.pauses[place]
        first_s = self.now_s + pause.ends_in_s
        first_due_s = record.first_token_due_s
        if first_due_s is not None and first_s > first_due_s:
            return False
        num_left = record.num_answer - record.num_generated - 1
        last_due_s = record.last_token_due_s(first_s)
        if last_due_s is None or num_left <= 0:
            return True
        spare_s = last_due_s - first_s - num_left * self.step_s
        if spare_s >= later_s:
            return True
        num_decodes = pause.num_decodes_before + pause.num_decodes + num_left
        return spare_s >= pause_within(self.pauses[place + 1 :], num_decodes)
