"""The scheduler's audit of its own books: what must hold between any two events."""

from collections import Counter
from collections.abc import Mapping

from punica_scheduler.fcfs_queue import FcfsQueue
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.request import RequestRecord, RequestState
from punica_scheduler.trials import Trials


def check_books(
    requests: Mapping[str, RequestRecord],
    gpus: Mapping[str, GpuRecord],
    queue: FcfsQueue,
    trials: Trials,
    counters: Counter[str],
) -> None:
    """Raises AssertionError where the books contradict each other."""
    queued = [record for record in requests.values() if record.state is RequestState.QUEUED]
    placed = [record for record in requests.values() if record.state is RequestState.PLACED]
    assert len(queued) + len(placed) == len(requests), "a request that has ended is still there"
    ended = counters["finished"] + counters["cancelled"] + counters["failed"]
    assert counters["arrived"] == ended + len(requests), "requests appeared or vanished"
    _check_queue(queued, queue)
    _check_placed(placed, gpus)
    for gpu in gpus.values():
        _check_gpu(gpu)
    trials.check_invariants(gpus)


def _check_queue(queued: list[RequestRecord], queue: FcfsQueue) -> None:
    in_line = list(queue)
    assert {id(record) for record in in_line} == {id(record) for record in queued}, "the queue is not who waits"
    assert len(in_line) == len(queued), "a request waits twice"
    queue.check_invariants()
    for record in queued:
        assert record.assignment is None and record.gpu_uuid is None, f"{record.request_id} waits on a GPU"
        assert not record.is_complete, f"{record.request_id} waits for nothing"


def _check_placed(placed: list[RequestRecord], gpus: Mapping[str, GpuRecord]) -> None:
    for record in placed:
        assert record.gpu_uuid is not None and record.assignment is not None, f"{record.request_id} is nowhere"
        assert gpus[record.gpu_uuid].working_set[record.assignment.counter] is record
    assert sum(len(gpu.working_set) for gpu in gpus.values()) == len(placed), "a working set holds a stranger"


def _check_gpu(gpu: GpuRecord) -> None:
    gpu.book.check_invariants()
    assert len(gpu.working_set) <= gpu.info.max_batch_size, f"{gpu.uuid} has more requests than fit a batch"
    assert gpu.fits_loras(), f"the adapters of {gpu.uuid} don't fit its pool"
