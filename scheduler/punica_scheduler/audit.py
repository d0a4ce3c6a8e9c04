"""The scheduler's audit of its own books: what must hold between any two events."""

from collections import Counter

from punica_scheduler.books import Books
from punica_scheduler.request import RequestRecord, RequestState


def check_books(books: Books) -> None:
    """Raises AssertionError where the books contradict each other."""
    requests = books.requests.values()
    queued = [record for record in requests if record.state is RequestState.QUEUED]
    placed = [record for record in requests if record.state is RequestState.PLACED]
    assert len(queued) + len(placed) == len(requests), "a request that has ended is still there"
    counters = books.counters
    ended = counters["finished"] + counters["cancelled"] + counters["failed"]
    assert counters["arrived"] == ended + len(requests), "requests appeared or vanished"
    _check_waiting(queued, books)
    _check_placed(placed, books)
    books.fleet.check_invariants()
    tenants = [record.request.tenant for record in requests]
    books.quotas.check_invariants(Counter(tenant for tenant in tenants if tenant is not None))
    books.adapters.check_invariants(record.digest for record in requests)
    books.trials.check_invariants(books.fleet.gpus)


def _check_waiting(queued: list[RequestRecord], books: Books) -> None:
    waiting = list(books.waiting)
    assert {id(record) for record in waiting} == {id(record) for record in queued}, "not all wait who should"
    assert len(waiting) == len(queued) == len(books.waiting), "a request waits twice"
    books.waiting.check_invariants()
    for record in queued:
        assert record.assignment is None and record.gpu_uuid is None, f"{record.request_id} waits on a GPU"
        assert not record.is_complete, f"{record.request_id} waits for nothing"
    homes = books.waiting.homebound.keys()
    assert homes <= books.fleet.gpus.keys(), "a request waits for a GPU that is no more"


def _check_placed(placed: list[RequestRecord], books: Books) -> None:
    gpus = books.fleet.gpus
    for record in placed:
        assert record.gpu_uuid is not None and record.assignment is not None, f"{record.request_id} is nowhere"
        assert gpus[record.gpu_uuid].working_set[record.assignment.counter] is record
    assert sum(len(gpu.working_set) for gpu in gpus.values()) == len(placed), "a working set holds a stranger"
