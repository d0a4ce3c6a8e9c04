"""Placement: which GPU a request goes to. One object for each policy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_scheduler.core.request import RequestRecord


class Placement(Protocol):
    """A policy with its parameters. It keeps no state, so the same cluster gives the same answer."""

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        """GPUs in order of preference. The first that has room and a free place is taken.

        GPUs that surely have none may be left out, and no others. Where no GPU has, ``GpuIndex.soonest_first`` decides
        for every policy: the request would wait anyway.
        """

    def keeps_promises(self, gpu: GpuRecord, newcomers: Sequence[RequestRecord], index: GpuIndex) -> bool:
        """Whether the GPU would keep everyone's promises with these requests more. A policy without promises: yes."""
        return True


@dataclass(frozen=True, slots=True)
class PunicaPlacement(Placement):
    """The largest working set, so that few GPUs are busy (Punica, section 5.1). Ties go to the longest known prefix,
    then to the highest UUID.
    """

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        return index.largest_first(record)


@dataclass(frozen=True, slots=True)
class MostIdlePlacement(Placement):
    """The smallest working set, which balances the load; ties as for Punica's."""

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        return index.smallest_first(record)


@dataclass(frozen=True, slots=True)
class FirstFitPlacement(Placement):
    """The lowest UUID."""

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        return index.by_uuid()


@dataclass(frozen=True, slots=True)
class RandomPlacement(Placement):
    """UUIDs in order, from one drawn by the request's id, so that a replay places each request the same."""

    def candidates(self, record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
        return index.by_uuid(crc32(record.request_id.encode()) % max(1, len(index)))


#: By the name that a config file uses.
PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    "punica": PunicaPlacement,
    "most_idle": MostIdlePlacement,
    "first_fit": FirstFitPlacement,
    "random": RandomPlacement,
}
