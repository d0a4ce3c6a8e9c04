"""Overlap scheduling: steps launched before the host knows the tokens of the step before: none is lost or doubled.

Engines run on a CPU that overlaps steps as a GPU does (see ``overlapped``), and on a GPU, against a plain CPU. Here
each case comes alone and is shown to occur; `test_engine_fuzz.py` mixes them at random.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest

from engine_fixtures import MakeAdapter, MakeEngine
from punica_serve.engine import device_runner
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_output import Failure, StepOutput
from punica_serve.engine.step_runner import CpuRunner
from punica_serve.protocol import AdapterRef, Request, SamplingParams
from waits import DEADLINE_S


def _request(
    name: str, prompt: Iterable[int] = (5, 6, 7), adapter: AdapterRef | None = None, arrival_ns: int = 0, **params: Any
) -> Request:
    sampling = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, "seed": 1, **params})
    return Request(name, arrival_ns, tuple(prompt), sampling, adapter)


@dataclass
class _Told:
    """All that an engine has said."""

    streams: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    finished: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    outputs: list[StepOutput] = field(default_factory=list)

    def step(self, engine: Engine) -> StepOutput:
        output = engine.step()
        engine.check_invariants()
        for token in output.tokens:
            assert token.request_id not in self.finished
            assert token.position == len(self.streams[token.request_id])
            self.streams[token.request_id].append(token.token_id)
        for request_id, reason in output.finished:
            assert self.finished.setdefault(request_id, reason) is reason
        self.failures += output.failures
        self.preempted += output.preempted
        self.outputs.append(output)
        return output

    def run(self, engine: Engine, *requests: Request) -> "_Told":
        """Until nothing runs, on the device neither."""
        for request in requests:
            engine.add(request)
        deadline = time.monotonic() + DEADLINE_S
        while self.step(engine).has_run or engine.num_requests:
            assert time.monotonic() < deadline, "the engine makes no progress"
            if not self.outputs[-1].has_run:
                engine.wait(0.1)
        assert engine.num_free_kv_pages == engine.num_kv_pages
        return self


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def make_overlapped(make_engine: MakeEngine, request: pytest.FixtureRequest) -> MakeEngine:
    """Engines whose steps are launched one ahead. Few shapes, which a GPU captures sooner."""
    if request.param == "cpu":
        request.getfixturevalue("overlapped")
    return partial(make_engine, device=request.param, **{"prefill_budget_tokens": 64, "max_batch_size": 8})


@pytest.fixture
def plainly(make_engine: MakeEngine) -> Callable[..., _Told]:
    """Tokens from a plain CPU engine with plenty of everything."""

    def run(*requests: Request) -> _Told:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_runner, "CpuRunner", CpuRunner)
            engine = make_engine()
        return _Told().run(engine, *requests)

    return run


def test_an_adapter_that_is_copied_within_a_step_costs_none(
    make_engine: MakeEngine, make_adapter: MakeAdapter, overlapped: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is busy with a step longer than the copy takes: what has arrived by its end is in the next one."""
    engine = make_engine(num_lora_pages=1)
    cold, other = make_adapter(seed=3), make_adapter(seed=4)
    write = LoraPool.write

    def write_slowly(*arguments: Any, **more: Any) -> float:
        time.sleep(0.02)
        return write(*arguments, **more)

    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: DEADLINE_S)
    monkeypatch.setattr(LoraPool, "write", write_slowly)
    for adapter in (cold, other):  # the second takes the first one's page: that is in host memory now
        _Told().run(engine, _request("first", adapter=adapter, max_tokens=1))
    engine.add(_request("running", max_tokens=20))
    for _ in range(4):
        engine.step()
    engine.add(_request("late", adapter=cold, max_tokens=1))
    engine.step()
    assert ("late", "length") in engine.step().finished


def test_tokens_come_one_call_after_their_step_was_launched(make_overlapped: MakeEngine) -> None:
    engine, told = make_overlapped(), _Told()
    engine.add(_request("a", max_tokens=3))
    assert told.step(engine).tokens == () and told.outputs[0].has_run and told.outputs[0].batch_size == 0
    positions = [[token.position for token in told.step(engine).tokens] for _ in range(4)]
    assert positions == [[0], [1], [2], []], "the fourth step is not launched, for the third token is in flight"
    assert [output.batch_size for output in told.outputs] == [0, 1, 1, 1, 0]
    assert not told.outputs[-1].has_run


def test_mixed_requests_get_what_they_get_plainly(
    make_overlapped: MakeEngine, make_adapter: MakeAdapter, plainly: Callable[..., _Told]
) -> None:
    adapters = [None, *(make_adapter(rank=rank, seed=rank) for rank in (4, 8, 20))]
    requests = [
        _request(f"r{n}", range(1, 2 + 3 * n), adapters[n % 4], n, max_tokens=1 + n, temperature=float(n % 2), seed=n)
        for n in range(10)
    ]
    told = _Told().run(make_overlapped(prefill_budget_tokens=8, max_batch_size=4), *requests)
    expected = plainly(*requests)
    assert (told.streams, told.finished) == (expected.streams, expected.finished)


def test_an_end_that_is_seen_a_step_late_is_the_end(make_overlapped: MakeEngine, plainly: Callable[..., _Told]) -> None:
    """The request is in one more step, whose token nobody gets, though its pages are another's by then."""
    free_run = plainly(_request("a", max_tokens=30)).streams["a"]
    requests = [
        _request("a", max_tokens=30, stop_token_ids=(free_run[9],)),
        _request("b", range(1, 30), arrival_ns=1, max_tokens=20),
    ]
    engine, told = make_overlapped(num_kv_pages=13), _Told()
    told.run(engine, *requests)
    assert told.finished == {"a": "stop", "b": "length"}
    assert told.streams["a"] == free_run[: free_run.index(free_run[9]) + 1]
    assert told.streams["b"] == plainly(requests[1]).streams["b"]
    (end,) = [number for number, output in enumerate(told.outputs) if ("a", "stop") in output.finished]
    assert told.outputs[end + 1].batch_size > len(told.outputs[end + 1].tokens), "nobody was in a step in vain"


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_the_same_request_added_again_while_its_token_is_in_flight(
    make_overlapped: MakeEngine, make_adapter: MakeAdapter, plainly: Callable[..., _Told], gap: int
) -> None:
    request = _request("a", range(1, 12), make_adapter(), max_tokens=10, presence_penalty=0.5)
    other = _request("b", arrival_ns=1, max_tokens=12)
    engine, told = make_overlapped(prefill_budget_tokens=16), _Told()
    engine.add(request)
    engine.add(other)
    while len(told.streams["a"]) < 8:
        for _ in range(gap):
            told.step(engine)
        if engine.num_requests == 2:
            engine.cancel("a")
            engine.add(msgspec.structs.replace(request, generated_ids=tuple(told.streams["a"])))
            told.step(engine)
        told.step(engine)
    told.run(engine)
    assert told.streams == plainly(request, other).streams


def test_a_cancelled_request_is_heard_of_no_more(make_overlapped: MakeEngine) -> None:
    engine, told = make_overlapped(), _Told()
    engine.add(_request("a"))
    told.step(engine)
    told.step(engine)
    engine.cancel("a")
    assert engine.num_free_kv_pages == engine.num_kv_pages
    assert told.run(engine).finished == {} and len(told.streams["a"]) == 1


def test_a_token_in_flight_of_a_preempted_request_is_sampled_again(
    make_overlapped: MakeEngine, make_adapter: MakeAdapter, plainly: Callable[..., _Told]
) -> None:
    requests = [
        _request(f"r{n}", range(1, 8), make_adapter(seed=n), n, max_tokens=20, temperature=1.0, seed=n, logprobs=0)
        for n in range(5)
    ]
    told = _Told().run(make_overlapped(num_kv_pages=16), *requests)
    assert told.preempted, "sixteen pages are too few for all five at once"
    assert told.streams == plainly(*requests).streams


def test_penalties_forget_a_token_that_is_sampled_again(
    make_overlapped: MakeEngine, plainly: Callable[..., _Told]
) -> None:
    """It starves while all others wait for their last tokens: no step comes between that would forget it."""
    requests = [
        _request("old", range(1, 9), max_tokens=5),
        _request("new", range(1, 6), arrival_ns=1, max_tokens=9, frequency_penalty=2.0, repetition_penalty=2.0),
    ]
    engine, told = make_overlapped(num_kv_pages=5, page_size=4), _Told()
    told.run(engine, *requests)
    assert told.preempted == ["new"]
    assert any(output.preempted and output.has_run for output in told.outputs)
    assert told.streams == plainly(*requests).streams


def test_a_launch_waits_for_a_request_that_it_has_room_for_and_for_none_else(
    make_overlapped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: 0.25)

    def num_waits(engine: Engine) -> int:
        waits.clear()
        with monkeypatch.context() as patch:
            patch.setattr(engine._work, "wait", waits.append)
            assert not engine.wait_for_requests()
        assert waits in ([], [0.25])
        return len(waits)

    engine, told = make_overlapped(max_batch_size=2, max_prefills=1), _Told()
    assert not num_waits(engine), "the device is idle"
    engine.add(_request("a", max_tokens=9))
    told.step(engine)
    assert num_waits(engine)
    engine.add(_request("b", max_tokens=3))
    assert not num_waits(engine), "b takes the step's prefill"
    told.step(engine)
    assert not num_waits(engine), "the batch is full"
    while "b" not in told.finished:
        told.step(engine)
    assert num_waits(engine)


def _always(value: bool) -> property:
    """An attribute that stays so, whatever a new step sets it to."""
    return property(lambda _: value, lambda *_: None)


def test_the_clock_learns_whether_launches_were_late(
    make_overlapped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One behind another step is late if that had ended before. The first one finds the device idle."""
    told: list[tuple[bool, bool]] = []
    monkeypatch.setattr(
        StepClock, "launched", lambda clock, forecast, *, is_late, has_ended: told.append((is_late, has_ended))
    )
    engine = make_overlapped()
    engine.add(_request("a", max_tokens=5))
    engine.step()
    assert engine._in_flight is not None and not told
    for is_late, has_ended in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(type(engine._in_flight.step), "is_late", _always(is_late), raising=False)
        monkeypatch.setattr(type(engine._in_flight.step), "has_ended", _always(has_ended))
        engine.step()
    assert told == [(True, True), (False, True), (False, False)]


def test_a_request_that_comes_while_a_launch_waits_is_in_that_step(
    make_overlapped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, told = make_overlapped(), _Told()
    engine.add(_request("a", max_tokens=20))
    for _ in range(3):
        told.step(engine)
    assert not engine.wait_for_requests(), "nothing has come, and the device is idle soon"
    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: DEADLINE_S)
    arrival = threading.Timer(0.05, engine.wake)
    arrival.start()
    assert engine.wait_for_requests(), "its wake ends the wait long before the device is idle"
    arrival.join()
    engine.add(_request("b", max_tokens=20))
    for _ in range(2):  # one launches b's prefill, the next tells of it
        told.step(engine)
    assert len(told.streams["b"]) == 1


def test_numbers_that_are_not_finite_fail_one_request_once(
    make_overlapped: MakeEngine, make_adapter: MakeAdapter, plainly: Callable[..., _Told]
) -> None:
    """The next step is on its way by then, and feeds the request whatever there is."""
    good = [_request(f"g{n}", range(1, 4 + 5 * n), arrival_ns=n + 1, max_tokens=20) for n in range(3)]
    engine, told = make_overlapped(num_kv_pages=40), _Told()
    told.run(engine, _request("bad", range(1, 30), make_adapter(seed=5, scale=1e30)), *good)
    assert [failure.request_ids for failure in told.failures] == [("bad",)]
    assert told.streams == plainly(*good).streams
    assert _Told().run(engine, *good).streams == told.streams


def test_a_step_that_ends_with_nobody_left_is_ended_all_the_same(make_overlapped: MakeEngine) -> None:
    """Else its numbers would be told with the next request's, which comes at some other time."""
    engine, told = make_overlapped(), _Told()
    engine.add(_request("a", max_tokens=20))
    for _ in range(3):
        told.step(engine)
    engine.cancel("a")
    assert told.step(engine).has_run and told.outputs[-1].batch_size == 1 and not told.outputs[-1].tokens
    assert not told.step(engine).has_run
