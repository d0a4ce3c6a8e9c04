"""Placements by cost that ask one GPU after the other: slow, but plain. They must decide as the shipped ones."""

from collections.abc import Iterator
from operator import attrgetter

from punica_scheduler.core.consolidate_slo import ConsolidateSloPlacement
from punica_scheduler.core.decode_batch import decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.rank_aware import PENALTY_S, RankAwarePlacement
from punica_scheduler.core.request import RequestRecord
from punica_serve.prefill_chunks import PrefillBudget

_by_uuid = attrgetter("uuid")


def with_room(record: RequestRecord, index: GpuIndex) -> list[GpuRecord]:
    """GPUs with a free place and with pages, the highest UUID first."""
    gpus = [gpu for gpu in index.by_uuid() if gpu.has_free_place and gpu.room > record.num_tokens]
    return sorted((gpu for gpu in gpus if gpu.adapters.fits(record)), key=_by_uuid, reverse=True)


def rank_aware(placement: RankAwarePlacement, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """The least cost first, or those with the adapter. The placement's prefills must run beside decodes."""
    costs, num_answer = placement.costs, index.typical.num_answer

    def cost(gpu: GpuRecord) -> float:
        num_rows, context, lora = batch = decode_batch(gpu)
        with_adapter = lora.with_row(record.adapter_size) if record.digest is not None else lora
        after_s = costs.step_s(0, num_rows + 1, context + record.num_tokens, with_adapter)
        promised_s = min(gpu.load_sums.tightest_s, record.time_per_token_s or float("inf"))
        before_s, prefills = costs.step_s(0, *batch), gpu.load_sums.prefills
        steps = {due.record.request_id: chunks(prefills.budget, due.num_cached, due.num_uncached) for due in prefills}
        own_steps, own_tokens = chunks(prefills.budget, 0, record.num_tokens)
        own_s = costs.prefill_s(own_tokens, record.adapter_size)
        pauses_s = sum(num * max(0.0, costs.step_s(tokens, *batch) - before_s) for num, tokens in steps.values())
        num_steps = sum(num for num, _ in steps.values())
        pause_s = (pauses_s + own_steps * max(0.0, own_s - after_s)) / (num_steps + own_steps)
        token_s = after_s + pause_s * min(1.0, (num_steps + own_steps) / num_answer)
        added_s = after_s - before_s + own_s * min(own_steps, num_answer) / num_answer
        turns_s = 2 * min(num_steps, own_steps) * own_s / num_answer
        return num_rows * (added_s + PENALTY_S * (token_s > promised_s)) + turns_s

    def is_far(gpu: GpuRecord) -> bool:
        return placement.adapters_on_host and not (gpu.has_adapter_of(record) or record.digest in gpu.cached)

    return iter(sorted(with_room(record, index), key=lambda gpu: (is_far(gpu), round(cost(gpu), 9))))


def chunks(budget: PrefillBudget, start: int, num_tokens: int) -> tuple[int, float]:
    """Steps, and the tokens at a prompt's beginning to which each is equivalent."""
    num_steps = budget.num_steps(start, num_tokens)
    return num_steps, budget.equivalent_tokens(start, num_tokens, num_steps)


def consolidate_slo(placement: ConsolidateSloPlacement, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """The largest working set that keeps all promises, then the smallest."""
    gpus = with_room(record, index)
    largest_first = sorted(gpus, key=lambda gpu: -len(gpu.working_set))
    packed = [gpu for gpu in largest_first if placement.keeps_promises(gpu, (record,), index)]
    yield from packed
    yield from (gpu for gpu in sorted(gpus, key=lambda gpu: len(gpu.working_set)) if gpu not in packed)
