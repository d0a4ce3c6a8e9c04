"""Where a request goes: the policies, one function each."""

from collections.abc import Callable, Sequence

from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord

#: Picks one of the GPUs that have room for the request; there is at least one.
Placement = Callable[[RequestRecord, Sequence[GpuRecord]], GpuRecord]


def punica(_record: RequestRecord, candidates: Sequence[GpuRecord]) -> GpuRecord:
    """The largest working set, so that few GPUs are busy and the others can be given back; ties to the highest UUID.

    Punica, section 5.1.
    """
    return max(candidates, key=lambda gpu: (len(gpu.working_set), gpu.uuid))


PLACEMENTS: dict[str, Placement] = {"punica": punica}
