from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from punica_runner.step_loop import StepLoop
from punica_serve.engine.adapters.host_cache import HostCache
from punica_serve.engine.adapters.packing import PackedAdapter
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.engine.step_output import Failure, GeneratedToken, StepOutput
from punica_serve.errors import InvalidRequest, RequestFailed
from punica_serve.paging.prefix_hints import PrefixHints
from punica_serve.protocol import (
    AdapterRef,
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    Request,
    Reset,
    SamplingParams,
    StartRequest,
    StepReport,
    StopRequest,
    TokenLogprobs,
    Warm,
    WireError,
)

BAD = RequestFailed("bad bytes")


@dataclass
class ScriptedEngine:
    """Returns the outputs that a test sets, and records its calls."""

    outputs: list[StepOutput] = field(default_factory=list)
    resident_adapters: tuple[str, ...] = ()
    num_free_kv_pages: int = 9
    num_shared_kv_pages: int = 0
    num_known_kv_pages: int = 0
    prefix_tokens: tuple[int, int] = (0, 0)
    prefix_hints: PrefixHints = field(default_factory=PrefixHints)
    calls: list[tuple[str, str]] = field(default_factory=list)
    rejects: bool = False
    #: Requests left in the engine by mistake.
    num_requests: int = 0
    host_cache: HostCache = field(default_factory=lambda: HostCache(HostMemory(1 << 20)))

    def add(self, request: Request, *, may_move: bool) -> None:
        assert may_move
        if self.rejects:
            raise InvalidRequest("token id 99 is outside the vocabulary of 97")
        self.calls.append(("add", request.request_id))

    def cancel(self, request_id: str) -> None:
        self.calls.append(("cancel", request_id))

    def prefetch(self, ref: AdapterRef, *, pin: bool | None) -> None:
        self.calls.append((f"warm {pin}", ref.digest))

    def prefetch_to_host(self, ref: AdapterRef) -> None:
        self.calls.append(("hint", ref.digest))

    def evict(self, digest: str) -> None:
        self.calls.append(("evict", digest))

    def check_invariants(self) -> None:
        self.calls.append(("check", ""))

    def step(self) -> StepOutput:
        return self.outputs.pop(0) if self.outputs else StepOutput()


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def loop(engine: ScriptedEngine) -> StepLoop:
    return StepLoop(engine, "gpu", "host/0")  # type: ignore[arg-type]


def assignment(counter: int) -> AssignmentId:
    return AssignmentId(7, counter)


def start(seq: int, request_id: str = "a") -> StartRequest:
    return StartRequest("gpu", seq, assignment(seq), Request(request_id, 0, (1,), SamplingParams()))


def stop(seq: int, counter: int) -> StopRequest:
    return StopRequest("gpu", seq, assignment(counter))


def ran(*tokens: tuple[str, int, int], **more: Any) -> StepOutput:
    made = tuple(GeneratedToken(*token, logprobs=None) for token in tokens)
    return StepOutput(made, has_run=True, batch_size=len(made), **more)


def turn(loop: StepLoop, *commands: Any) -> tuple[list[Any], bool]:
    """All reports of a turn, and whether the model ran."""
    applied = loop.apply(commands)
    stepped, has_run = loop.step()
    return [*applied, *stepped], has_run


def last_report(loop: StepLoop, *commands: Any) -> StepReport:
    reports, _ = turn(loop, *commands)
    assert isinstance(reports[-1], StepReport)
    return reports[-1]


def test_an_idle_turn_has_nothing_to_tell_or_to_do(loop: StepLoop) -> None:
    assert turn(loop) == ([], False)


def test_tokens_are_reported_by_assignment(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("b", 0, 11), ("a", 4, 12))]
    loop.apply([start(1, "a"), start(2, "b")])
    reports, has_run = loop.step()
    assert has_run
    assert reports == [
        StepReport(
            gpu_uuid="gpu",
            epoch=0,
            step=1,
            applied_seq=2,
            incarnation=7,
            assignments=(2, 1),
            positions=(0, 4),
            token_ids=(11, 12),
            free_kv_pages=9,
            batch_size=2,
            num_prefill_tokens=0,
            num_adapters=0,
            duration_s=0.0,
        )
    ]


def test_shared_pages_and_cached_tokens_are_reported(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.num_shared_kv_pages, engine.num_known_kv_pages, engine.prefix_tokens = 2, 4, (30, 20)
    engine.outputs = [replace(ran(("b", 0, 11), ("a", 0, 12)), cached=(("b", 16),), finished=(("b", "length"),))]
    report = last_report(loop, start(1, "a"), start(2, "b"))
    assert isinstance(report, StepReport)
    assert report.cached == ((2, 16),)
    assert (report.num_shared_kv_pages, report.num_known_kv_pages) == (2, 4)
    assert (report.prefix_cache_queries, report.prefix_cache_hits) == (30, 20)


def test_logprobs_are_a_column_of_their_own_where_any_request_asked(loop: StepLoop, engine: ScriptedEngine) -> None:
    logprobs = TokenLogprobs(-0.5)
    tokens = (GeneratedToken("a", 0, 5, logprobs), GeneratedToken("b", 0, 6, None))
    engine.outputs = [StepOutput(tokens, has_run=True, batch_size=2)]
    report = last_report(loop, start(1, "a"), start(2, "b"))
    assert (report.token_ids, report.logprobs) == ((5, 6), (logprobs, None))


def test_a_start_is_acknowledged_before_it_runs(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("a", 0, 5))]
    (acknowledged,) = loop.apply([start(1)])
    assert isinstance(acknowledged, StepReport)
    assert (acknowledged.applied_seq, acknowledged.assignments) == (1, ())
    assert len(engine.outputs) == 1


def test_the_end_of_the_batch_is_reported_once(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("a", 0, 5), finished=(("a", "stop"),))]
    assert last_report(loop, start(1)).batch_size == 1
    (acknowledged,) = loop.apply([stop(2, 1)])
    assert isinstance(acknowledged, StepReport) and acknowledged.batch_size == 1
    assert last_report(loop).batch_size == 0
    assert turn(loop) == ([], False)


def test_commands_applied_without_a_step_are_acknowledged(loop: StepLoop) -> None:
    report = last_report(loop, start(1), stop(2, 1), stop(3, 99))
    assert (report.applied_seq, report.batch_size, report.step) == (3, 0, 0)


def test_a_finished_assignment_is_reported_after_its_tokens_and_then_dropped(
    loop: StepLoop, engine: ScriptedEngine
) -> None:
    engine.outputs = [ran(("a", 0, 5), finished=(("a", "stop"),))]
    report = last_report(loop, start(1))
    assert report.assignments == (1,) and report.finished == ((1, "stop"),)
    last_report(loop, stop(2, 1))
    assert ("cancel", "a") not in engine.calls, "the late stop reached nobody"


def test_a_request_that_starts_again_belongs_to_its_newest_assignment(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [StepOutput(), ran(("a", 0, 5))]
    last_report(loop, start(1, "a"))
    report = last_report(loop, start(2, "a"), stop(3, 1))
    assert engine.calls == [("add", "a"), ("cancel", "a"), ("add", "a")]
    assert report.assignments == (2,)


def test_the_resident_adapters_are_reported_when_they_change(loop: StepLoop, engine: ScriptedEngine) -> None:
    assert last_report(loop, start(1)).resident is None
    engine.resident_adapters = ("d1",)
    assert last_report(loop).resident == ("d1",)
    assert turn(loop) == ([], False)
    engine.resident_adapters = ()
    assert last_report(loop).resident == ()


def test_a_reset_drops_all_and_tells_all_again_in_its_epoch(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.resident_adapters = ("d1",)
    last_report(loop, start(1, "a"), start(2, "b"))
    engine.prefix_hints.note(7)
    assert last_report(loop, start(3, "c")).prefix_hints == (7,)
    report = last_report(loop, Reset(4))
    assert sorted(engine.calls[3:]) == [("cancel", "a"), ("cancel", "b"), ("cancel", "c")]
    assert (report.epoch, report.applied_seq, report.resident, report.prefix_hints) == (4, 0, ("d1",), (7,))
    assert last_report(loop, start(1, "a")).epoch == 4


def test_failed_loads_are_reported_by_cause_before_the_step(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [
        StepOutput(),
        ran(
            ("c", 0, 5),
            failures=(Failure(("a", "b"), True, BAD), Failure((), False, BAD)),
        ),
    ]
    turn(loop, start(1, "a"), start(2, "b"), start(3, "c"))
    (failed, step), _ = turn(loop)
    assert failed == AssignmentsFailed("gpu", 0, 3, (assignment(1), assignment(2)), True, WireError.of(BAD))
    assert isinstance(step, StepReport) and step.assignments == (3,)


def test_a_failed_load_tells_the_pages_that_came_back(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [StepOutput(), StepOutput(failures=(Failure(("a",), True, BAD),))]
    turn(loop, start(1, "a"))
    (failed, report), _ = turn(loop)
    assert isinstance(failed, AssignmentsFailed)
    assert isinstance(report, StepReport) and report.batch_size == 0


def test_preempted_assignments_are_reported_and_stay(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [StepOutput(), StepOutput(preempted=("a",)), ran(("a", 0, 5))]
    turn(loop, start(1, "a"))
    assert last_report(loop).starved == (1,)
    assert last_report(loop).assignments == (1,)


def test_a_request_that_the_engine_refuses_fails_alone(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.rejects = True
    (failed, report), _ = turn(loop, start(1, "a"))
    refusal = WireError("invalid_request", "token id 99 is outside the vocabulary of 97")
    assert failed == AssignmentsFailed("gpu", 0, 1, (assignment(1),), True, refusal)
    assert isinstance(report, StepReport) and report.applied_seq == 1
    engine.rejects = False
    last_report(loop, start(2, "a"))
    assert engine.calls == [("add", "a")]


def test_the_accounting_is_audited_when_the_last_request_has_left(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("a", 0, 5), finished=(("a", "stop"),))]
    turn(loop, start(1))
    assert ("check", "") not in engine.calls, "a step under way may still hold what it needs"
    turn(loop)
    turn(loop)
    assert engine.calls.count(("check", "")) == 1


def test_a_request_that_is_left_over_ends_the_worker(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("a", 0, 5), finished=(("a", "stop"),))]
    turn(loop, start(1))
    engine.num_requests = 1
    with pytest.raises(AssertionError, match="requests without assignments"):
        turn(loop)


def test_after_a_reset_reports_name_the_new_incarnation(loop: StepLoop, engine: ScriptedEngine) -> None:
    engine.outputs = [ran(("a", 0, 5)), ran(("a", 0, 5))]
    assert last_report(loop, start(1)).incarnation == 7
    again = StartRequest("gpu", 1, AssignmentId(8, 1), Request("a", 0, (1,), SamplingParams()))
    report = last_report(loop, Reset(1), again)
    assert (report.epoch, report.incarnation, report.assignments) == (1, 8, (1,))


def test_prefetches_and_evictions_reach_the_engine(loop: StepLoop, engine: ScriptedEngine) -> None:
    ref = AdapterRef("d1", "s3://bucket/d1", 100, {"q_proj": 8})
    turn(loop, Warm("gpu", ref), Warm("gpu", ref, pin=True), Forget("d1"))
    assert engine.calls == [("warm None", "d1"), ("warm True", "d1"), ("evict", "d1")]
    assert last_report(loop, stop(5, 1)).applied_seq == 5


def test_a_hint_reaches_the_engine_without_a_report(loop: StepLoop, engine: ScriptedEngine) -> None:
    assert turn(loop, Warm("gpu", AdapterRef("d1", "/d1", 100, {}), host_only=True)) == ([], False)
    assert engine.calls == [("hint", "d1")]


def cache(engine: ScriptedEngine, digest: str) -> None:
    engine.host_cache.release(engine.host_cache.make(digest, 100, lambda _: PackedAdapter({})))


def test_changes_of_host_memory_are_reported_once(loop: StepLoop, engine: ScriptedEngine) -> None:
    cache(engine, "d1")
    cache(engine, "d2")
    assert turn(loop) == ([AdaptersCached("gpu", ("d1", "d2"), ())], False)
    assert turn(loop) == ([], False)
    engine.host_cache.evict("d1")
    assert turn(loop) == ([AdaptersCached("gpu", (), ("d1",))], False)


def test_after_a_reset_all_of_host_memory_is_reported_again(loop: StepLoop, engine: ScriptedEngine) -> None:
    for digest in ("d1", "d2", "d3"):
        cache(engine, digest)
    turn(loop)
    engine.host_cache.evict("d2")
    reports, _ = turn(loop, Reset(1))
    # The scheduler may hear only now, after the GPU has joined again, that d2 had been added.
    assert reports[1:] == [AdaptersCached("gpu", ("d1", "d3"), ("d2",))]
    assert turn(loop) == ([], False)
