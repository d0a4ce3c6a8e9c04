"""Where a request goes: the policies, one function each."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from zlib import crc32

from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord

#: Picks one of the GPUs that have room for the request; there is at least one.
Placement = Callable[[RequestRecord, Sequence[GpuRecord]], GpuRecord]


def punica(_record: RequestRecord, candidates: Sequence[GpuRecord]) -> GpuRecord:
    """The largest working set, so that few GPUs are busy and the others can be given back; ties to the highest UUID.

    Punica, section 5.1.
    """
    return max(candidates, key=lambda gpu: (len(gpu.working_set), gpu.uuid))


def most_idle(_record: RequestRecord, candidates: Sequence[GpuRecord]) -> GpuRecord:
    """The smallest working set: what balances load. Ties go to the lowest UUID."""
    return min(candidates, key=lambda gpu: (len(gpu.working_set), gpu.uuid))


def first_fit(_record: RequestRecord, candidates: Sequence[GpuRecord]) -> GpuRecord:
    """The lowest UUID."""
    return min(candidates, key=attrgetter("uuid"))


def drawn(record: RequestRecord, candidates: Sequence[GpuRecord]) -> GpuRecord:
    """Any of them, drawn by the request's id, so that the same requests are placed the same."""
    return candidates[crc32(record.request_id.encode()) % len(candidates)]


PLACEMENTS: dict[str, Placement] = {"punica": punica, "most_idle": most_idle, "first_fit": first_fit, "random": drawn}
