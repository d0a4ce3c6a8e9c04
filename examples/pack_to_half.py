"""A placement policy of your own: pack as Punica does, but no batch beyond half its places while another GPU has room.

    punica-serve simulate configs/sim/figure20.yaml --compare examples/pack_to_half.py:PackToHalf,punica,most_idle

docs/scheduling.md tells what a policy is given, and what it must keep to.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_costs import StepCosts


@dataclass(frozen=True, slots=True)
class PackToHalf(Placement):
    """The largest working set below half a batch first; then the smallest."""

    #: Seconds of steps by the profile, which this policy does not ask; None without a profile.
    costs: StepCosts | None

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        return iter(sorted(index.by_uuid(), key=_cost))


def _cost(gpu: GpuRecord) -> tuple[bool, int]:
    size = len(gpu.working_set)
    is_half_full = 2 * size >= gpu.info.max_batch_size
    return is_half_full, size if is_half_full else -size
