"""A GPU's coming prefills: when each gives its first token, and how long they hold up the requests that decode.

Where prefills run apart, a step has all prefills that can run by then, and decodes pause for it. Where they run beside
decodes, a step has at most the GPU's ``max_prefills``, and lasts longer for them.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from punica_scheduler.core.decode_batch import DecodeBatch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts
from punica_serve.performance.lora_load import NO_ADAPTER, NO_LORA


class PrefillStep(NamedTuple):
    records: tuple[RequestRecord, ...]
    #: From now to its end.
    ends_in_s: float
    #: How much later the decodes' tokens come for it.
    pause_s: float


def coming_prefills(
    gpu: GpuRecord, newcomers: Sequence[RequestRecord], batch: DecodeBatch, costs: StepCosts, now_s: float
) -> list[PrefillStep]:
    """The steps with the GPU's prefills and the newcomers'. ``batch`` is all of them and the decodes as one batch."""
    step_s = costs.step_s(0, *batch)
    rest_s = (
        max(0.0, gpu.token_ns / 1e9 + step_s - now_s) if len(gpu.working_set) > len(gpu.load_sums.prefills) else 0.0
    )
    if costs.prefills_apart:
        return _apart(gpu, newcomers, costs, now_s, rest_s=rest_s, decode_s=step_s)
    steps, ends_s = [], rest_s
    coming, num_together = [*(due.record for due in gpu.load_sums.prefills), *newcomers], gpu.info.max_prefills
    for first in range(0, len(coming), num_together):
        together = tuple(coming[first : first + num_together])
        mixed_s = costs.step_s(sum(record.num_tokens for record in together), *batch)
        ends_s += mixed_s
        steps.append(PrefillStep(together, ends_s, mixed_s - step_s))
    return steps


def _apart(
    gpu: GpuRecord,
    newcomers: Sequence[RequestRecord],
    costs: StepCosts,
    now_s: float,
    *,
    rest_s: float,
    decode_s: float,
) -> list[PrefillStep]:
    under_way = gpu.num_steps + 1
    by_step: dict[int, list[RequestRecord]] = {}
    for due in gpu.load_sums.prefills:
        by_step.setdefault(max(due.step, under_way), []).append(due.record)
    for record in newcomers:
        by_step.setdefault(gpu.prefill_step_of(record), []).append(record)
    steps, ends_s, next_step = [], 0.0, under_way
    for step in sorted(by_step):
        if step > next_step:  # the decodes' step that is under way, and those between two prefills'
            ends_s += (rest_s if next_step == under_way else decode_s) + (step - next_step - 1) * decode_s
        pause_s = _together_s(by_step[step], costs)
        if step == under_way and gpu.working_set:
            since_s = max(gpu.token_ns, min(record.assigned_ns for record in by_step[step])) / 1e9
            pause_s = max(0.0, pause_s + since_s - now_s)
        ends_s += pause_s
        steps.append(PrefillStep(tuple(by_step[step]), ends_s, pause_s))
        next_step = step + 1
    return steps


def _together_s(records: Iterable[RequestRecord], costs: StepCosts) -> float:
    """One step of these prefills."""
    num_tokens, lora = 0, NO_LORA
    for record in records:
        num_tokens += record.num_tokens
        if record.adapter_size is not NO_ADAPTER:
            lora = lora.with_row(record.adapter_size)
    return costs.step_s(num_tokens, 0, 0, lora)
