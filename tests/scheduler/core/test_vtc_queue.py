from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.vtc_queue import VtcQueue
from punica_serve.protocol import Request, SamplingParams
from scheduler_in_words import NewCluster


def request(name: str, tenant: str | None, *, at: int = 0, prompt: int = 10) -> RequestRecord:
    sampling = SamplingParams(max_tokens=1000)
    return RequestRecord.of("f", 0, Request(name, at, (1,) * prompt, sampling, tenant_id=tenant))


def serve_next(queue: VtcQueue, *, num_tokens: int = 0) -> str:
    """The head is placed and gets so many tokens; returns its name."""
    queue.check_invariants()
    record = queue.head
    assert record is not None
    queue.remove(record)
    queue.charge([record])
    record.generated_ids.extend([1] * num_tokens)
    queue.charge([record])
    queue.check_invariants()
    return record.request_id


def filled(*records: RequestRecord) -> VtcQueue:
    queue = VtcQueue()
    for record in records:
        queue.add(record)
    return queue


def test_within_a_tenant_who_came_first_is_next() -> None:
    queue = filled(request("a2", "a", at=2), request("a1", "a", at=1))
    assert [serve_next(queue), serve_next(queue)] == ["a1", "a2"]
    assert queue.head is None


def test_the_tenant_that_was_served_least_is_next_whoever_came_first() -> None:
    queue = filled(*(request(f"a{i}", "a", at=i) for i in range(3)), *(request(f"b{i}", "b", at=9) for i in range(3)))
    assert [serve_next(queue) for _ in range(6)] == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_generated_tokens_weigh_twice_a_prompts() -> None:
    queue = filled(*(request(f"a{i}", "a") for i in range(2)), *(request(f"b{i}", "b", prompt=20) for i in range(4)))
    assert serve_next(queue, num_tokens=20) == "a0"  # 10 + 2 * 20 = 50
    assert [serve_next(queue) for _ in range(3)] == ["b0", "b1", "b2"]  # 20, 40, 60
    assert serve_next(queue) == "a1"


def test_service_is_charged_while_it_is_given() -> None:
    queue = filled(*(request(f"a{i}", "a", at=i) for i in range(2)), request("b0", "b"), request("b1", "b"))
    runs = request("runs", "a")
    runs.num_charged = 10
    runs.generated_ids.extend([1] * 100)
    queue.charge([runs])
    queue.charge([runs])
    assert [serve_next(queue) for _ in range(4)] == ["b0", "b1", "a0", "a1"]


def test_a_tenant_that_comes_back_gets_no_credit_for_its_pause() -> None:
    queue = filled(*(request(f"a{i}", "a", at=i) for i in range(50)))
    for _ in range(20):
        serve_next(queue)
    for i in range(10):
        queue.add(request(f"b{i}", "b"))
    served = [serve_next(queue)[0] for _ in range(10)]
    assert served.count("a") == served.count("b") == 5


def test_a_tenant_that_finds_nobody_waiting_starts_where_the_last_one_left() -> None:
    queue = filled(request("a0", "a"))
    serve_next(queue, num_tokens=500)
    queue.add(request("b0", "b"))
    queue.add(request("a1", "a"))
    queue.add(request("b1", "b"))
    assert sorted([serve_next(queue), serve_next(queue)]) == ["a1", "b0"]


def test_what_a_request_arrived_with_is_not_charged() -> None:
    again = RequestRecord.of("f", 0, Request("again", 0, (1,), SamplingParams(max_tokens=900), None, (1,) * 500, "a"))
    queue = filled(again, request("a1", "a", at=1), request("b0", "b", at=1))
    assert [serve_next(queue) for _ in range(2)] == ["again", "b0"]


def test_requests_without_a_tenant_are_one_tenants() -> None:
    queue = filled(request("r0", None), request("r1", None), request("a0", "a"))
    assert serve_next(queue) == "r0"
    assert serve_next(queue) == "a0"
    assert len(queue) == 1


def test_a_flood_of_one_tenant_delays_another_by_one_request_at_most(new_cluster: NewCluster) -> None:
    cluster = new_cluster(queue="vtc")
    cluster.gpu_joins("A", batch=1)
    for i in range(20):
        cluster.arrives(f"flood{i}", tenant="a")
    cluster.arrives("modest", tenant="b")
    assert cluster.steps("A", "flood0", finished="flood0")[1:] == ["A: start modest"]
