"""An audit that can't fail is none: each test cooks the state and must be caught."""

from collections.abc import Callable

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.request_state import RequestState, WaitReason
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.protocol import GpuInfo, Request, SamplingParams


def forget_a_request(state: ClusterState) -> None:
    del state.requests["waits"]


def end_without_leaving(state: ClusterState) -> None:
    state.requests["runs"].state = RequestState.FINISHED


def wait_twice(state: ClusterState) -> None:
    state.waiting.add(state.requests["waits"], WaitReason.PLACEMENT, 0)


def wait_and_run(state: ClusterState) -> None:
    state.requests["waits"].gpu_uuid = "A"


def run_unseen(state: ClusterState) -> None:
    stranger = RequestRecord.of("f", 3, Request("stranger", 1, (1,), SamplingParams()))
    state.fleet.gpus["A"].working_set[99] = stranger


def acknowledge_the_future(state: ClusterState) -> None:
    state.fleet.gpus["A"].kv_pages.report(99, 4)


def grow_unseen(state: ClusterState) -> None:
    state.requests["runs"].generated_ids.extend([1] * 15)


def miscount_pages(state: ClusterState) -> None:
    state.fleet.gpus["A"].num_pages_ahead -= 1


def miscount_adapters(state: ClusterState) -> None:
    state.fleet.gpus["A"].adapters.refcounts["stranger"] = 1


def drain_in_part(state: ClusterState) -> None:
    state.fleet.gpus["A"].is_draining = True


def forget_a_kind_of_gpu(state: ClusterState) -> None:
    state.fleet.capacities.clear()


def leave_a_gpu_out(state: ClusterState) -> None:
    state.fleet.index.discard(state.fleet.gpus["B"])


def free_room_unseen(state: ClusterState) -> None:
    gpu = state.fleet.gpus["B"]
    gpu.kv_pages.num_reported_free -= 1
    gpu._update_room()


def wait_for_nothing(state: ClusterState) -> None:
    state.requests["waits"].num_prompt = 1


def hint_a_request_that_runs(state: ClusterState) -> None:
    state.hints._unhinted["runs"] = state.requests["runs"]


def miscount_hints(state: ClusterState) -> None:
    state.hints._num_hints += 1


@pytest.mark.parametrize(
    "cook",
    [
        forget_a_request,
        end_without_leaving,
        wait_twice,
        wait_and_run,
        run_unseen,
        acknowledge_the_future,
        grow_unseen,
        miscount_pages,
        miscount_adapters,
        drain_in_part,
        forget_a_kind_of_gpu,
        leave_a_gpu_out,
        free_room_unseen,
        wait_for_nothing,
        hint_a_request_that_runs,
        miscount_hints,
    ],
)
def test_wrong_accounting_is_caught(cook: Callable[[ClusterState], None]) -> None:
    scheduler = Scheduler(1, SchedulerSettings(audit_every=1))
    for uuid in "AB":
        scheduler.handle(events.GpuJoined("runner", GpuInfo(uuid, "cpu", 2, 16, 4, {})), 1)
    for handle, name in enumerate(("runs", "runs too", "waits")):
        sampling = SamplingParams(max_tokens=30)
        scheduler.handle(events.RequestArrived("f", handle, Request(name, handle, (1,) * 33, sampling)), 1)
    cook(scheduler._state)
    with pytest.raises((AssertionError, KeyError)):
        scheduler.check_invariants()


def test_an_audit_comes_after_every_so_manieth_event() -> None:
    scheduler = Scheduler(1, SchedulerSettings(audit_every=3))
    scheduler.handle(events.RequestArrived("f", 1, Request("r", 1, (1,), SamplingParams())), 1)
    scheduler._state.counters["arrived"] += 1
    scheduler.handle(events.RunnerLost("nobody"), 1)
    with pytest.raises(AssertionError, match="requests appeared or vanished"):
        scheduler.handle(events.RunnerLost("nobody"), 1)
