"""An audit that can't fail is none: each test cooks the books and must be caught."""

from collections.abc import Callable

import pytest

from punica_scheduler import events
from punica_scheduler.request import RequestRecord, RequestState
from punica_scheduler.scheduler import Scheduler
from punica_serve.protocol import GpuInfo, Request, SamplingParams


def forget_a_request(scheduler: Scheduler) -> None:
    del scheduler._requests["waits"]


def end_without_leaving(scheduler: Scheduler) -> None:
    scheduler._requests["runs"].state = RequestState.FINISHED


def wait_twice(scheduler: Scheduler) -> None:
    scheduler._queue.add(scheduler._requests["waits"])


def wait_and_run(scheduler: Scheduler) -> None:
    scheduler._requests["waits"].gpu_uuid = "A"


def run_unseen(scheduler: Scheduler) -> None:
    stranger = RequestRecord.of("f", 3, Request("stranger", 1, (1,), SamplingParams()))
    scheduler._gpus["A"].working_set[99] = stranger


def acknowledge_the_future(scheduler: Scheduler) -> None:
    scheduler._gpus["A"].book.report(99, 4)


@pytest.mark.parametrize(
    "cook", [forget_a_request, end_without_leaving, wait_twice, wait_and_run, run_unseen, acknowledge_the_future]
)
def test_cooked_books_are_caught(cook: Callable[[Scheduler], None]) -> None:
    scheduler = Scheduler(1)
    scheduler.handle(events.GpuJoined("runner", GpuInfo("A", "cpu", 1, 16, 4, {})), 1)
    for handle, name in enumerate(("runs", "waits")):
        scheduler.handle(events.RequestArrived("f", handle, Request(name, 1, (1,), SamplingParams())), 1)
    scheduler.check_invariants()
    cook(scheduler)
    with pytest.raises((AssertionError, KeyError)):
        scheduler.check_invariants()
