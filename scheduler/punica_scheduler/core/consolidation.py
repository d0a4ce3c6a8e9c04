"""Emptying lightly loaded GPUs, so that they can be given back (Punica, section 5.1).

A GPU is emptied when all its requests fit on busier GPUs, no request waits, and it pays. Moving a request costs the GPU
time of prefilling all its tokens again. Emptying a GPU saves its time until its requests would have ended by
themselves, but no longer than emptied GPUs stay idle.

Requests never move back and forth. They only move to busier GPUs, and each moves at most once. A GPU that takes some
keeps a free page for each of its requests, so it does not preempt them again within a page's worth of steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.known_prefixes import KnownPrefixes
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord

#: GPUs that are tried, the least loaded first, before a look ends without result: a look must not cost a step's time.
MAX_TRIED = 8

Moves = list[tuple[RequestRecord, GpuRecord]]


@dataclass(frozen=True, slots=True)
class ConsolidationRule:
    """How often to look, and what counts; see ``ConsolidationConfig``."""

    interval_ns: int
    light_load: float
    prefill_tokens_per_s: float
    idle_s: float

    def pays(self, gpu: GpuRecord, prefixes: KnownPrefixes) -> bool:
        """Whether prefilling the GPU's requests elsewhere takes less GPU time than its emptiness saves.

        Beginnings that another GPU knows are not prefilled, if the request comes there.
        """
        records = gpu.working_set.values()
        num_tokens = sum(record.num_tokens - prefixes.num_known_tokens(record, gpu) for record in records)
        cost_s = num_tokens / self.prefill_tokens_per_s
        longest = max(record.max_tokens - record.num_generated for record in records)
        return cost_s < min(longest * gpu.step_s, self.idle_s)


def plan(gpus: Iterable[GpuRecord], index: GpuIndex, rule: ConsolidationRule, placement: Placement) -> Moves:
    """The moves that empty one GPU; none if none should be emptied."""
    light = [gpu for gpu in gpus if 0 < gpu.load <= rule.light_load and not gpu.is_draining and _is_movable(gpu)]
    for gpu in nsmallest(MAX_TRIED, light, key=_busyness):
        if rule.pays(gpu, index.prefixes) and (moves := _moves_off(gpu, index, placement)):
            return moves
    return []


def _is_movable(gpu: GpuRecord) -> bool:
    return not any(
        record.was_consolidated or record.is_complete or record.is_suspect for record in gpu.working_set.values()
    )


def _busyness(gpu: GpuRecord) -> tuple[int, str]:
    return len(gpu.working_set), gpu.uuid


def _moves_off(gpu: GpuRecord, index: GpuIndex, placement: Placement) -> Moves:
    """Where each request of the GPU fits, the others that are to go there counted; none if one fits nowhere.

    A request fits where there is room and the policy's promises hold.
    """
    moves: Moves = []
    newcomers: dict[GpuRecord, list[RequestRecord]] = {}
    for record in gpu.working_set.values():
        for target in index.largest_first(record):
            if _busyness(target) <= _busyness(gpu):
                return []
            all_new = [record, *newcomers.get(target, [])]
            if target.has_room_for_all(all_new) and placement.keeps_promises(target, all_new, index):
                newcomers[target] = all_new
                moves.append((record, target))
                break
        else:
            return []
    return moves
