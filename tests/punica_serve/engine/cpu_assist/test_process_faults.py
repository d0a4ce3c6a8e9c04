"""CPU processes that are killed, stopped or slow while they help: they cost no more than their prefill."""

import os
import signal
from threading import Timer

import pytest

from assisted_engine import BeforeLayer, Exchanges, Resident, event_of_suspicion, pids_of, pool_of
from cold_requests import NUM_LAYERS, cold_request, evict, hold_copies, run_requests
from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.engine.cpu_assist import assistant
from punica_serve.engine.cpu_assist.assist_forecast import AssistForecast
from punica_serve.engine.engine import Engine
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S, wait_for

pytestmark = NEEDS_CPU_ASSIST


def test_processes_that_are_stopped_cost_their_prefill_alone(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its request waits for all of its adapter instead, and others replace the processes."""
    monkeypatch.setattr(assistant, "_CPU_WAIT_S", 0.05)
    request, other, stopped = cold_request("cold", refs[0]), cold_request("other", None), pids_of(engine)
    given_up = event_of_suspicion(monkeypatch)
    hold_copies(monkeypatch, "cpu", lambda _: given_up.wait(DEADLINE_S))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert run_requests(engine, request, other) == resident(request, other)
    wait_for(lambda: pool_of(engine).is_free, "the processes' end")
    assert [record.message for record in caplog.records if "the prefill of" in record.message] == [
        "CPU processes of `engine.cold_start` did not answer within 50 ms, or 50 ms in all; the prefill of 10 tokens"
        " starts again when its adapter is on the device"
    ]
    remaining = set(stopped) & set(pids_of(engine))
    for pid in remaining:
        os.kill(pid, signal.SIGCONT)
    num_killed = sum("did not answer and was killed" in record.message for record in caplog.records)
    assert num_killed == len(stopped) - len(remaining) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [0, 4])
def test_a_process_that_dies_at_any_point_costs_its_prefill_alone(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    before_layer: BeforeLayer,
    exchanges: Exchanges,
    caplog: pytest.LogCaptureFixture,
    kill_at: int,
) -> None:
    """Nobody waits for its answer: the step's wait has no end within this test."""
    monkeypatch.setattr(assistant, "_CPU_WAIT_S", 2 * DEADLINE_S)
    request, victim = cold_request("cold", refs[0]), pids_of(engine)[0]
    given_up = event_of_suspicion(monkeypatch)
    hold_copies(monkeypatch, "cpu", lambda _: given_up.wait(DEADLINE_S))

    def kill(layer: int) -> None:
        if layer == kill_at and not given_up.is_set():
            os.kill(victim, signal.SIGKILL)

    before_layer(kill)
    assert run_requests(engine, request) == resident(request)
    assert [record.message for record in caplog.records if "the prefill of" in record.message] == [
        "a CPU process of `engine.cold_start` ended while it helped; the prefill of 10 tokens starts again when its"
        " adapter is on the device"
    ]
    assert pool_of(engine).wait_until_ready(DEADLINE_S), "another process replaces it"
    evict(engine, *refs)
    exchanges.clear()
    again = cold_request("again", refs[1])
    assert run_requests(engine, again) == resident(again)
    assert exchanges, "its processes help again"


def test_a_process_that_is_slow_is_waited_for(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    before_layer: BeforeLayer,
    caplog: pytest.LogCaptureFixture,
    exchanges: Exchanges,
) -> None:
    """It is stopped for a while at the beginning, in the middle and at the end."""
    pid = pids_of(engine)[0]

    def pause(layer: int) -> None:
        if layer in (0, NUM_LAYERS // 2, NUM_LAYERS - 1):
            os.kill(pid, signal.SIGSTOP)
            Timer(0.1, os.kill, (pid, signal.SIGCONT)).start()

    before_layer(pause)
    hold_copies(monkeypatch, "cpu", lambda _: wait_for(lambda: len(exchanges) == 4 * NUM_LAYERS, "the step"))
    request = cold_request("cold", refs[0])
    assert run_requests(engine, request) == resident(request)
    assert all(by_process for _, by_process in exchanges) and not caplog.records


@pytest.mark.slow
def test_auto_says_the_same_while_processes_are_killed(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    before_layer: BeforeLayer,
    exchanges: Exchanges,
) -> None:
    """It asks for help whenever it can, and a process dies at the beginning, in the middle and at the end."""
    monkeypatch.setattr(engine._opening.tiers.assist, "_mode", "auto")
    monkeypatch.setattr(AssistForecast, "pays", lambda *_: True)
    run_requests(engine, cold_request("measured", refs[0]))
    given_up = event_of_suspicion(monkeypatch)

    def is_due() -> bool:
        return given_up.is_set() or len(exchanges) == 4 * NUM_LAYERS

    hold_copies(monkeypatch, "cpu", lambda _: wait_for(is_due, "the step"))
    kill_at = [0]
    before_layer(lambda layer: os.kill(pids_of(engine)[0], signal.SIGKILL) if layer == kill_at[0] else None)
    for kill_at[0] in (0, 3, NUM_LAYERS - 1):
        evict(engine, *refs)
        assert pool_of(engine).wait_until_ready(DEADLINE_S)
        given_up.clear()
        exchanges.clear()
        request = cold_request(f"{kill_at[0]}", refs[1])
        assert run_requests(engine, request) == resident(request)
        assert given_up.is_set()
