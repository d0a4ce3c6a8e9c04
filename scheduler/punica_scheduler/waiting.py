"""All requests that wait for a GPU: those in the queue, and those that can't take just any."""

from collections.abc import Callable, Iterator
from itertools import chain

from punica_scheduler.line import Line
from punica_scheduler.queues import RequestQueue
from punica_scheduler.request import RequestRecord


class Waiting:
    """The queue, and beside it four kinds of requests that neither wait for it nor hold it up.

    Suspects must run alone; see ``trials``. Without migration, an evicted request waits for the GPU that it ran on. One
    whose adapter the store does not give waits aside, where it takes no place that others could use. And one whose GPU
    was lost, and that none of the others could hold, waits for a larger one: most often the same, back again.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.suspects = Line()
        #: GPU UUID -> those that wait for this GPU; none is empty.
        self.homebound: dict[str, Line] = {}
        self.aside = Line()
        self.outsize = Line()
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain(self.queue, self.suspects, *self.homebound.values(), self.aside, self.outsize)

    @property
    def num_for_gpu(self) -> int:
        """Those that wait for a GPU that is there, rather than for the store or for a larger one."""
        return self._num_waiting - len(self.aside) - len(self.outsize)

    def add(self, record: RequestRecord) -> None:
        self._num_waiting += 1
        self._line_of(record).add(record)

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that waits. A request becomes a suspect, and is acquitted, only while it is on a GPU."""
        self._num_waiting -= 1
        line = self._line_of(record)
        line.remove(record)
        if record.home_uuid is not None and not self.homebound.get(record.home_uuid, True):
            del self.homebound[record.home_uuid]

    def _line_of(self, record: RequestRecord) -> Line | RequestQueue:
        if record.awaits_larger:
            return self.outsize
        if record.is_suspect:
            return self.suspects
        if record.aside_until_ns is not None:
            return self.aside
        if record.home_uuid is not None:
            return self.homebound.setdefault(record.home_uuid, Line())
        return self.queue

    def free_homebound(self, gpu_uuid: str) -> None:
        """The GPU is no more: who waited for it takes any."""
        for record in self.homebound.pop(gpu_uuid, ()):
            record.home_uuid = None
            self.queue.add(record)

    def await_larger(self, record: RequestRecord) -> None:
        """No GPU could hold this one of the queue, or of the suspects."""
        self._line_of(record).remove(record)
        record.awaits_larger = True
        self.outsize.add(record)

    def free_outsize(self, fits: Callable[[RequestRecord], bool]) -> None:
        """The fleet has changed: those that fit it take their places in their lines, by arrival."""
        for record in [record for record in self.outsize if fits(record)]:
            self.outsize.remove(record)
            record.awaits_larger = False
            self._line_of(record).add(record)

    def call_back(self, is_due: Callable[[RequestRecord], bool], now_ns: int) -> None:
        """Requests that wait aside take their places in the queue, by arrival."""
        for record in [record for record in self.aside if is_due(record)]:
            self.remove(record)
            record.count_wait(now_ns)
            record.aside_until_ns, record.queued_ns = None, now_ns  # what it waits for now is a GPU
            self.add(record)

    def check_invariants(self) -> None:
        self.queue.check_invariants()
        self.aside.check_invariants()
        assert all(record.aside_until_ns is not None and not record.is_suspect for record in self.aside), "aside"
        assert all(record.is_suspect for record in self.suspects), "an innocent waits to run alone"
        assert not any(record.home_uuid for record in self.suspects), "a suspect waits for one GPU"
        assert all(self._line_of(record) is self.queue for record in self.queue), "one waits in the wrong line"
        self.outsize.check_invariants()
        assert all(self._line_of(record) is self.outsize for record in self.outsize), "outsize"
        for uuid, line in self.homebound.items():
            line.check_invariants()
            assert line and all(record.home_uuid == uuid for record in line), f"the line for {uuid} is wrong"
