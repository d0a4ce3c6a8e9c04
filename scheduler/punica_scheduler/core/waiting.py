"""All requests that wait for a GPU: those in the queue, and those that can't take just any GPU."""

from collections.abc import Callable, Iterator
from itertools import chain

from punica_scheduler.core.arrival_queue import ArrivalQueue
from punica_scheduler.core.queues import RequestQueue
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.request_state import WaitReason
from punica_serve.errors.invariants import require


class Waiting:
    """One queue for each ``WaitReason``. Only ``queue``, the one for placement, blocks behind its head.

    The others neither wait for that queue nor hold it up. This class alone writes a request's wait.
    """

    def __init__(self, queue: RequestQueue) -> None:
        self.queue = queue
        self.suspects = ArrivalQueue()
        #: GPU UUID -> requests pinned to this GPU. None of the queues is empty.
        self.pinned: dict[str, ArrivalQueue] = {}
        self.awaiting_adapter = ArrivalQueue()
        self.awaiting_larger_gpu = ArrivalQueue()
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain(self.queue, self.suspects, *self.pinned.values(), self.awaiting_adapter, self.awaiting_larger_gpu)

    @property
    def num_for_gpu(self) -> int:
        """Requests that a GPU of today's cluster could run, if it had room."""
        return self._num_waiting - len(self.awaiting_adapter) - len(self.awaiting_larger_gpu)

    def add(self, record: RequestRecord, reason: WaitReason, now_ns: int) -> None:
        """Enqueues a request that is on no GPU."""
        self._num_waiting += 1
        record.begin_wait(reason, now_ns)
        self._queue_of(record).add(record)

    def remove(self, record: RequestRecord, now_ns: int) -> None:
        """Takes out a request that waits, to place or to end it."""
        self._num_waiting -= 1
        self._take_out(record)
        record.end_wait(now_ns)

    def release_pinned(self, gpu_uuid: str) -> None:
        """The GPU is gone or draining: requests pinned to it may run on any."""
        for record in list(self.pinned.get(gpu_uuid, ())):
            self._change_reason(record, WaitReason.PLACEMENT)

    def await_larger_gpu(self, record: RequestRecord) -> None:
        """No GPU is large enough for this request of the queue, or for this suspect."""
        self._change_reason(record, WaitReason.LARGER_GPU)

    def retry_larger(self, fits: Callable[[RequestRecord], bool]) -> None:
        """The fleet has changed: requests that now fit a GPU take their places by arrival."""
        for record in [record for record in self.awaiting_larger_gpu if fits(record)]:
            self._change_reason(record, WaitReason.QUARANTINE if record.is_suspect else WaitReason.PLACEMENT)

    def retry_adapters(self, is_due: Callable[[RequestRecord], bool], now_ns: int) -> None:
        """Requests that await their adapter take their places in the queue, by arrival."""
        for record in [record for record in self.awaiting_adapter if is_due(record)]:
            self._change_reason(record, WaitReason.PLACEMENT)
            record.restart_wait(now_ns)  # the timeout is for the wait for a GPU

    def _change_reason(self, record: RequestRecord, reason: WaitReason) -> None:
        self._take_out(record)
        record.change_wait_reason(reason)
        self._queue_of(record).add(record)

    def _take_out(self, record: RequestRecord) -> None:
        self._queue_of(record).remove(record)
        gpu_uuid = record.pinned_gpu_uuid
        if gpu_uuid is not None and not self.pinned.get(gpu_uuid, True):
            del self.pinned[gpu_uuid]

    def _queue_of(self, record: RequestRecord) -> ArrivalQueue | RequestQueue:
        match record.wait_reason:
            case WaitReason.PLACEMENT:
                return self.queue
            case WaitReason.QUARANTINE:
                return self.suspects
            case WaitReason.ADAPTER:
                return self.awaiting_adapter
            case WaitReason.LARGER_GPU:
                return self.awaiting_larger_gpu
            case WaitReason.PINNED_GPU if record.pinned_gpu_uuid is not None:
                return self.pinned.setdefault(record.pinned_gpu_uuid, ArrivalQueue())
        raise AssertionError(f"request {record.request_id} waits for {record.wait_reason}")

    def check_invariants(self) -> None:
        """AssertionError is a bug of ours."""
        queues: list[ArrivalQueue | RequestQueue] = [self.queue, self.suspects, *self.pinned.values()]
        queues += [self.awaiting_adapter, self.awaiting_larger_gpu]
        for queue in queues:
            queue.check_invariants()
            require(all(self._queue_of(record) is queue for record in queue), "a request waits in the wrong queue")
        for record in self:
            is_quarantined = record.wait_reason is WaitReason.QUARANTINE
            is_free = record.wait_reason is WaitReason.LARGER_GPU  # it returns to where it belongs
            require(is_free or is_quarantined == record.is_suspect, f"{record.request_id} waits in the wrong queue")
        require(all(self.pinned.values()), "the queue for a GPU is empty")
