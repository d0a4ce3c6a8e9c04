from hypothesis import given
from hypothesis import strategies as st

from punica_scheduler.core.deadline_queue import DeadlineQueue
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import Request, SamplingParams, Slo
from scheduler_in_words import NewCluster

SECOND = 10**9
TIMEOUT_S = 10


def record(name: str, *, at_s: float = 0, first_token_s: float | None = None, generated: int = 0) -> RequestRecord:
    slo = None if first_token_s is None else Slo(first_token_s)
    generated_ids = (5,) * generated
    arrival_ns = round(at_s * SECOND)
    request = Request(name, arrival_ns, (1,), SamplingParams(), generated_ids=generated_ids, slo=slo)
    return RequestRecord.of("f", 0, request)


def order(*records: RequestRecord) -> list[str]:
    """The names as they leave the queue."""
    queue = DeadlineQueue(TIMEOUT_S * SECOND)
    for each in records:
        queue.add(each)
        queue.check_invariants()
    names = []
    while (head := queue.head) is not None:
        names.append(head.request_id)
        queue.remove(head)
    return names


def test_the_earliest_deadline_is_next_whoever_came_first() -> None:
    patient, urgent = record("patient", first_token_s=5), record("urgent", at_s=1, first_token_s=1)
    assert order(patient, urgent) == ["urgent", "patient"]


def test_a_request_without_a_promise_is_due_at_the_timeout() -> None:
    plain = record("plain")
    before, after = record("before", at_s=8.9, first_token_s=1), record("after", at_s=9.1, first_token_s=1)
    assert order(after, plain, before) == ["before", "plain", "after"]


def test_a_promise_of_time_per_token_alone_sets_no_deadline() -> None:
    slow = RequestRecord.of("f", 0, Request("slow", 0, (1,), SamplingParams(), slo=Slo(time_per_token_s=0.01)))
    assert order(slow, record("plain", at_s=-1)) == ["plain", "slow"]


def test_a_promise_beyond_the_timeout_is_no_worse_than_none() -> None:
    assert order(record("plain", at_s=1), record("lax", first_token_s=1e6)) == ["lax", "plain"]


def test_requests_with_a_token_come_before_all_others_by_arrival() -> None:
    began = (record("second", at_s=2, first_token_s=0.1, generated=1), record("first", at_s=1, generated=7))
    assert order(record("urgent", first_token_s=0.001), *began) == ["first", "second", "urgent"]


def test_equal_deadlines_go_by_id() -> None:
    assert order(record("b"), record("a")) == ["a", "b"]


records = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.one_of(st.none(), st.floats(0.001, 1e6)),
        st.integers(0, 1),
    ),
    max_size=12,
)


@given(records, st.data())
def test_whatever_comes_and_goes_the_head_has_the_earliest_deadline(
    given_records: list[tuple[int, float | None, int]], data: st.DataObject
) -> None:
    queue = DeadlineQueue(TIMEOUT_S * SECOND)
    waiting: list[RequestRecord] = []
    for index, (at_s, first_token_s, generated) in enumerate(given_records):
        waiting.append(record(f"r{index}", at_s=at_s, first_token_s=first_token_s, generated=generated))
        queue.add(waiting[-1])
        if data.draw(st.booleans()):
            gone = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            queue.remove(gone)
        queue.check_invariants()
        assert set(queue) == set(waiting) and len(queue) == len(waiting)
        assert queue.head is min(waiting, key=deadline, default=None)


def deadline(each: RequestRecord) -> tuple[bool, float, str]:
    """The same order, as the documentation says it."""
    request = each.request
    if request.generated_ids:
        return False, request.arrival_ns, request.request_id
    promised_s = TIMEOUT_S if request.slo is None or request.slo.first_token_s is None else request.slo.first_token_s
    return True, request.arrival_ns + round(min(promised_s, TIMEOUT_S) * SECOND), request.request_id


def test_newcomers_overtake_a_request_without_a_promise_only_until_it_is_nearly_due() -> None:
    queue = DeadlineQueue(TIMEOUT_S * SECOND)
    plain = record("plain")
    queue.add(plain)
    for second in range(TIMEOUT_S):
        queue.add(record(f"urgent{second}", at_s=second, first_token_s=1.5))
        is_next = queue.head is plain
        assert is_next == (second + 1.5 > TIMEOUT_S)
        if not is_next:
            assert queue.head is not None
            queue.remove(queue.head)


def test_a_cluster_places_by_deadline_and_preempted_requests_first(new_cluster: NewCluster) -> None:
    cluster = new_cluster(queue="deadline")
    cluster.arrives("plain")
    cluster.arrives("patient", slo=Slo(first_token_s=5))
    cluster.arrives("urgent", slo=Slo(first_token_s=0.5))
    cluster.arrives("began", generated=2)
    starts = ["A: start began after 2", "A: start urgent", "A: start patient", "A: start plain"]
    assert cluster.gpu_joins("A") == starts
