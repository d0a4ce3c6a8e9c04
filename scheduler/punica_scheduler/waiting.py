"""All requests that wait for a GPU: those in the queue, and those that can't take just any."""

from collections.abc import Iterator
from itertools import chain

from punica_scheduler.line import Line
from punica_scheduler.queues import RequestQueue
from punica_scheduler.request import RequestRecord


class Waiting:
    """The queue, and beside it two kinds of requests that neither wait for it nor hold it up.

    Suspects must run alone; see ``trials``. Without migration, an evicted request waits for the GPU that it ran on.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.suspects = Line()
        #: GPU UUID -> those that wait for this GPU; none is empty.
        self.homebound: dict[str, Line] = {}
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain(self.queue, self.suspects, *self.homebound.values())

    def add(self, record: RequestRecord) -> None:
        self._num_waiting += 1
        if record.is_suspect:
            self.suspects.add(record)
        elif record.home_uuid is not None:
            self.homebound.setdefault(record.home_uuid, Line()).add(record)
        else:
            self.queue.add(record)

    def remove(self, record: RequestRecord) -> None:
        """Takes out a record that waits. A request becomes a suspect, and is acquitted, only while it is on a GPU."""
        self._num_waiting -= 1
        if record.is_suspect:
            self.suspects.remove(record)
        elif record.home_uuid is not None:
            line = self.homebound[record.home_uuid]
            line.remove(record)
            if not line:
                del self.homebound[record.home_uuid]
        else:
            self.queue.remove(record)

    def free_homebound(self, gpu_uuid: str) -> None:
        """The GPU is no more: who waited for it takes any."""
        for record in self.homebound.pop(gpu_uuid, ()):
            record.home_uuid = None
            self.queue.add(record)

    def check_invariants(self) -> None:
        self.queue.check_invariants()
        assert all(record.is_suspect for record in self.suspects), "an innocent waits to run alone"
        assert not any(record.home_uuid for record in self.suspects), "a suspect waits for one GPU"
        assert not any(record.is_suspect or record.home_uuid for record in self.queue), "one waits in the wrong line"
        for uuid, line in self.homebound.items():
            line.check_invariants()
            assert line and all(record.home_uuid == uuid for record in line), f"the line for {uuid} is wrong"
