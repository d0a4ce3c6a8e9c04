"""The order in which requests that wait for a GPU get one: the policies, one class each."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from punica_scheduler.line import Line
from punica_scheduler.request import RequestRecord
from punica_scheduler.vtc_queue import VtcQueue


class RequestQueue(Protocol):
    """Requests that may run beside others on any GPU. Only the head is ever placed, so a head blocks all behind it."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[RequestRecord]: ...

    @property
    def head(self) -> RequestRecord | None:
        """Who is next. It may change at any addition, removal and charge."""

    def add(self, record: RequestRecord) -> None: ...

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that is in the queue."""

    def charge(self, records: Iterable[RequestRecord]) -> None:
        """These are being served, or have just been: what they got since they were last charged counts."""

    def check_invariants(self) -> None: ...


class FcfsQueue(Line):
    """First come, first served, whatever anyone has had already."""

    def charge(self, records: Iterable[RequestRecord]) -> None:
        pass


QUEUES: dict[str, Callable[[], RequestQueue]] = {"fcfs": FcfsQueue, "vtc": VtcQueue}
