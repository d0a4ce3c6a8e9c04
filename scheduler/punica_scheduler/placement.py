"""Where a request goes: the policies, one function each.

A policy is an order: of the GPUs that it gives, the first that has room for the request is taken.
"""

from collections.abc import Callable, Iterator
from zlib import crc32

from punica_scheduler.gpu import GpuRecord
from punica_scheduler.gpu_index import GpuIndex
from punica_scheduler.request import RequestRecord

#: GPUs in the order in which they are asked. Those that surely have no room may be left out, and no others.
Placement = Callable[[RequestRecord, GpuIndex], Iterator[GpuRecord]]


def punica(record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """The largest working set, so that few GPUs are busy and the others can be given back; ties to the highest UUID.

    Punica, section 5.1.
    """
    return index.largest_first(record.num_tokens + 1)


def most_idle(record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """The smallest working set, which balances the load; ties to the highest UUID."""
    return index.smallest_first(record.num_tokens + 1)


def first_fit(_record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """The lowest UUID."""
    return index.by_uuid()


def drawn(record: RequestRecord, index: GpuIndex) -> Iterator[GpuRecord]:
    """From one drawn by the request's id on, so that the same requests are placed the same."""
    return index.by_uuid(crc32(record.request_id.encode()) % max(1, len(index)))


PLACEMENTS: dict[str, Placement] = {"punica": punica, "most_idle": most_idle, "first_fit": first_fit, "random": drawn}
