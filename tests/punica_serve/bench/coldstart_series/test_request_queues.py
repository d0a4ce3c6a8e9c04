from punica_serve.bench.coldstart_series.request_queues import Arriving, ClosedLoop, TimedQueue
from punica_serve.protocol import Request, SamplingParams


def requests(count: int) -> list[Request]:
    return [Request(f"r{number}", number, (1,), SamplingParams(), None) for number in range(count)]


def test_requests_arrive_by_the_clock() -> None:
    timed = [Arriving(due_s, request) for due_s, request in zip((0.0, 1.0, 1.5, 9.0), requests(4), strict=True)]
    queue = TimedQueue(timed)
    assert queue.take(0.0, 0) == timed[:1] and queue.next_s(0.5) == 1.0
    assert queue.take(0.9, 0) == []
    assert queue.take(2.0, 1) == timed[1:3] and queue.next_s(20.0) == 20.0, "the next is late already"
    assert queue.take(9.0, 100) == timed[3:] and queue.next_s(9.0) is None


def test_at_most_the_limit_is_added_and_the_rest_keeps_its_time() -> None:
    timed = [Arriving(0.0, request) for request in requests(3)]
    queue = TimedQueue(timed, limit=2)
    assert queue.take(1.0, 0) == timed[:2]
    assert queue.take(1.0, 2) == []
    assert queue.take(5.0, 1) == timed[2:]


def test_in_a_closed_loop_a_request_arrives_when_another_ends() -> None:
    queue = ClosedLoop(requests(9), num_in_flight=3, seconds=10.0)
    assert [arriving.request.request_id for arriving in queue.take(0.0, 0)] == ["r0", "r1", "r2"]
    assert queue.take(1.0, 3) == []
    ((due_s, request),) = queue.take(2.0, 2)
    assert due_s == 2.0 and request.request_id == "r3"
    assert queue.next_s(3.0) == 3.0
    assert queue.take(10.0, 0) == [] and queue.next_s(10.0) is None, "the time is over"


def test_a_closed_loop_that_begins_late_has_its_first_requests() -> None:
    queue = ClosedLoop(requests(9), num_in_flight=3, seconds=0.5)
    assert len(queue.take(0.7, 0)) == 3
    assert queue.take(0.8, 0) == [] and queue.next_s(0.8) is None


def test_a_closed_loop_may_run_out_of_requests() -> None:
    queue = ClosedLoop(requests(2), num_in_flight=3, seconds=10.0)
    assert len(queue.take(0.0, 0)) == 2 and queue.next_s(0.0) is None
