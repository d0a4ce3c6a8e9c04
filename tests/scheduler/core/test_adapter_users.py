from punica_scheduler.core.adapter_users import AdapterUsers
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.request import RequestRecord
from punica_serve.protocol import AdapterRef, AssignmentId, GpuInfo, Request, SamplingParams


def test_the_first_request_of_an_adapter_and_the_last_are_told_apart() -> None:
    users, gpu = AdapterUsers(), GpuRecord(GpuInfo("A", "cpu", 4, 4, 8, {"qkv": 1}), "runner")
    assignments = [AssignmentId(1, number) for number in range(2)]
    told = []
    for assignment in assignments:
        request = Request("r", 0, (1,), SamplingParams(), AdapterRef("x", "/x", 1, {"q_proj": 8}))
        gpu.add(assignment, RequestRecord.of("f", 0, request))
        told.append(users.update(gpu, "x"))
        users.check_invariants([gpu])
    assert told == [True, False] and users.of("x") == {gpu}
    for assignment in assignments:
        assert users.of("x") == {gpu} and not users.of(None)
        gpu.remove(assignment, 0)
        assert not users.update(gpu, "x")
        users.check_invariants([gpu])
    assert not users.of("x")
