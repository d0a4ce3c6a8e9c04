"""A GPU's coming prefills: when each gives its first token, and how long they hold up the requests that decode.

Where prefills run apart, a step has all prefills that can run by then, and decodes pause for it. Where they run beside
decodes, a step has at most the GPU's ``max_prefills``, and lasts longer for them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from punica_scheduler.core.decode_batch import DecodeBatch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.prefill_queue import DuePrefill
from punica_scheduler.core.prefill_runs import prefill_runs
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.lora_load import NO_ADAPTER, NO_LORA
from punica_serve.prefill_chunks import PrefillBudget


class PrefillPause(NamedTuple):
    """Steps in a row that prefill."""

    #: They get their next tokens at the end of the last one.
    records: tuple[RequestRecord, ...]
    #: From now to its end.
    ends_in_s: float
    #: How much later the decodes' tokens come for all of them.
    pause_s: float
    #: Steps of decodes, from now, after which it begins; and those with which it shares steps: none where prefills run
    #: apart.
    num_decodes_before: int
    num_decodes: int = 0


def pause_within(pauses: Sequence[PrefillPause], num_decodes: int) -> float:
    """Seconds by which so many steps of decodes, from now, are later for them."""
    pause_s = 0.0
    for pause in pauses:
        if (num_held_up := num_decodes - pause.num_decodes_before) <= 0:
            break
        pause_s += pause.pause_s * (min(1.0, num_held_up / pause.num_decodes) if pause.num_decodes else 1.0)
    return pause_s


def coming_prefills(
    gpu: GpuRecord, newcomers: Sequence[RequestRecord], batch: DecodeBatch, costs: StepCosts, now_s: float
) -> list[PrefillPause]:
    """The steps with the GPU's prefills and the newcomers'. ``batch`` is all of them and the decodes as one batch."""
    step_s = costs.step_s(0, *batch)
    is_decoding = len(gpu.working_set) > len(gpu.load_sums.prefills)
    rest_s = max(0.0, gpu.token_ns / 1e9 + step_s - now_s) if is_decoding else 0.0
    if costs.prefills_apart:
        return _apart(gpu, newcomers, costs, now_s, rest_s=rest_s, decode_s=step_s)
    prefills = gpu.load_sums.prefills
    due = [each.copy() for each in prefills]
    due += [DuePrefill(record, 0, 0, record.num_tokens) for record in newcomers]
    due.sort(key=_by_arrival)
    num_rows = batch.num_rows - len(due)
    num_context_tokens = max(0.0, batch.num_context_tokens - sum([each.record.num_tokens for each in due]))
    pauses, ends_s, num_decodes = list[PrefillPause](), rest_s, int(is_decoding)
    for run in prefill_runs(due, prefills.budget, prefills.turns, gpu.info.max_prefills):
        mixed_s = costs.step_s(run.num_tokens, num_rows, num_context_tokens, batch.lora)
        ends_s += run.num_steps * mixed_s
        pause_s = run.num_steps * max(0.0, mixed_s - step_s)
        pauses.append(PrefillPause(run.records, ends_s, pause_s, num_decodes, run.num_steps))
        num_decodes += run.num_steps
        num_rows += len(run.records)
        num_context_tokens += sum([record.num_tokens for record in run.records])
    return pauses


def _apart(
    gpu: GpuRecord,
    newcomers: Sequence[RequestRecord],
    costs: StepCosts,
    now_s: float,
    *,
    rest_s: float,
    decode_s: float,
) -> list[PrefillPause]:
    under_way = gpu.num_steps + 1
    by_step: dict[int, list[DuePrefill]] = {}
    for due in gpu.load_sums.prefills:
        by_step.setdefault(max(due.step, under_way), []).append(due.copy())
    for record in newcomers:
        step = gpu.prefill_step_of(record)
        by_step.setdefault(step, []).append(DuePrefill(record, step, step, record.num_tokens))
    pauses, ends_s, num_decodes, next_step = list[PrefillPause](), 0.0, 0, under_way
    for step in sorted(by_step):
        if step > next_step:  # the decodes' step that is under way, and those between two prefills'
            ends_s += (rest_s if next_step == under_way else decode_s) + (step - next_step - 1) * decode_s
            num_decodes += step - next_step
        assigned_ns = min([due.record.assigned_ns for due in by_step[step]])
        for records, pause_s in _together(by_step[step], gpu.load_sums.prefills.budget, costs):
            left_s = pause_s
            if step == under_way and not pauses and gpu.working_set:
                since_s = max(gpu.token_ns, assigned_ns) / 1e9
                left_s = max(0.0, pause_s + since_s - now_s)
            ends_s += left_s
            pauses.append(PrefillPause(records, ends_s, left_s, num_decodes))
        next_step = step + 1
    return pauses


def _together(
    due: list[DuePrefill], budget: PrefillBudget, costs: StepCosts
) -> Iterator[tuple[tuple[RequestRecord, ...], float]]:
    """The steps of these prefills alone, one after another: who has a token then, and seconds."""
    lora = NO_LORA
    for each in due:
        if each.record.adapter_size is not NO_ADAPTER:
            lora = lora.with_row(each.record.adapter_size)
    due.sort(key=_by_arrival)
    for run in prefill_runs(due, budget, None, None):
        yield run.records, run.num_steps * costs.step_s(run.num_tokens, 0, 0, lora)


def _by_arrival(due: DuePrefill) -> tuple[int, str]:
    return due.record.arrival
