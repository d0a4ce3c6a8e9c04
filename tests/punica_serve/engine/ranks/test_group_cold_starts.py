"""Prefills of a group that start while their adapter is still being copied, on ranks that are late by themselves.

The ranks are threads. Their copies are held before one of the groups of layers, so that a step runs into the gap.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
from torch import Tensor

from cold_requests import (
    NUM_GROUPS,
    cold_adapters,
    cold_model,
    cold_request,
    finish_requests,
    hold_copies,
    run_requests,
)
from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine import cold_starts
from punica_serve.engine.adapters import layer_arrival
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cpu_assist import assistant
from punica_serve.engine.cpu_assist.torch_exchange import TorchExchange
from punica_serve.engine.engine import Engine
from punica_serve.engine.ranks.group_settings import GroupSettings
from punica_serve.engine.ranks.rank_copies import RankCopies
from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_runner import LaunchedStep
from punica_serve.protocol import AdapterRef, LoraGroup, Request
from rank_pids import rank_pids
from thread_group import thread_group
from waits import DEADLINE_S, wait_for

#: The threads that copy, by their names' beginnings.
LEADER, OTHERS = "adapter-copier", "rank-copier"
#: With so many copies of each byte, an adapter takes seconds.
_MANY_COPIES = 4000

MakeGroup = Callable[..., Engine]


@pytest.fixture(scope="module")
def model(make_model: Callable[..., Path]) -> Path:
    return cold_model(make_model, "llama")


@pytest.fixture(scope="module")
def refs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return cold_adapters(model, tmp_path_factory.mktemp("adapters"), 3)


def _config(model: Path, cold_start: str, divide_lora_from: int | None = None) -> EngineConfig:
    memory = {"page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64, "max_batch_size": 4}
    memory |= {"cpu_assist_processes": 1}
    return EngineConfig(
        model=model,
        dtype="float32",
        cold_start=cold_start,
        prefill_budget_tokens=16,
        divide_lora_from=divide_lora_from,
        **memory,
    )


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.slow)])
def make_group(request: pytest.FixtureRequest, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeGroup]:
    with ExitStack() as opened:

        def make(cold_start: str = "layerwise", divide_lora_from: int | None = None) -> Engine:
            config = _config(model, cold_start, divide_lora_from)
            return opened.enter_context(thread_group(monkeypatch, config, request.param))

        yield make


@pytest.fixture
def resident(model: Path) -> Callable[..., dict[str, list[int]]]:
    """Tokens from one device that waits for all of an adapter."""

    def run(*requests: Request) -> dict[str, list[int]]:
        engine = Engine(_config(model, "wait"))
        try:
            tokens, failures = run_requests(engine, *requests)
        finally:
            engine.close()
        assert not failures
        return tokens

    return run


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The adapter of each step for which a rank other than the leader has to wait."""
    digests: list[str] = []
    arrival = RankCopies.arrival

    def spy(copies: RankCopies, digest: str) -> Any:
        found = arrival(copies, digest)
        if found is not None and found.num_arrived < NUM_GROUPS:
            digests.append(digest)
        return found

    monkeypatch.setattr(RankCopies, "arrival", spy)
    return digests


def _launches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the adapter may still be arriving, for each step that the leader launches from now on."""
    launched: list[bool] = []
    launch = engine._runner.launch

    def spy(plan: StepPlan) -> LaunchedStep:
        launched.append(plan.is_early)
        return launch(plan)

    monkeypatch.setattr(engine._runner, "launch", spy)
    return launched


def _on(threads: str) -> bool:
    return threading.current_thread().name.startswith(threads)


def _hold_until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "no step waits for the copy"
        time.sleep(0.001)
    time.sleep(0.02)


@pytest.mark.parametrize(("threads", "late_group"), [(LEADER, 1), (LEADER, 5), (OTHERS, 1), (OTHERS, 7)])
def test_a_prefill_starts_at_once_and_each_rank_waits_for_its_own_layers(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    early: list[str],
    monkeypatch: pytest.MonkeyPatch,
    threads: str,
    late_group: int,
) -> None:
    engine, requests = make_group(), [cold_request("cold", refs[0], num_prompt_tokens=20), cold_request("b", refs[0])]
    launched = _launches(engine, monkeypatch)
    hold_copies(
        monkeypatch,
        "cpu",
        lambda group: _hold_until(lambda: launched) if _on(threads) and group == late_group else None,
    )
    assert run_requests(engine, *requests) == (resident(*requests), [])
    assert launched[0]
    if threads == OTHERS:
        assert early[0] == refs[0].digest


@pytest.mark.parametrize(
    "cold_start", ["layerwise", pytest.param("cpu_assist", marks=[NEEDS_CPU_ASSIST, pytest.mark.slow])]
)
def test_no_step_starts_before_every_rank_has_begun_to_copy(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    cold_start: str,
) -> None:
    engine, request, may_copy = make_group(cold_start), cold_request("cold", refs[0]), threading.Event()
    hold_copies(monkeypatch, "cpu", lambda _: may_copy.wait(DEADLINE_S) if _on(OTHERS) else None)
    engine.add(request)
    deadline_s = time.monotonic() + DEADLINE_S
    while (arrival := engine._loader.arrivals.arrival(refs[0].digest)) is None or arrival.num_arrived < NUM_GROUPS:
        assert not engine.step().has_run and time.monotonic() < deadline_s
        engine.wait(0.01)
    assert not engine.step().has_run, "the leader has all layers, the others have none"
    may_copy.set()
    assert finish_requests(engine) == (resident(request), [])


def test_a_prefill_that_joins_decodes_changes_no_tokens(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    early: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_starts, "_MAX_HOLD_S", 1e9)
    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: 0.0)
    running, cold = cold_request("running", refs[0], max_tokens=80), cold_request("cold", refs[1])
    expected, engine = resident(running, cold), make_group()
    run_requests(engine, cold_request("measured", refs[2]))  # now the rate of copies is known
    engine.add(running)
    tokens: list[int] = []
    while not tokens:
        tokens += [token.token_id for token in engine.step().tokens]
    early.clear()
    hold_copies(monkeypatch, "cpu", lambda group: _hold_until(lambda: early) if _on(OTHERS) and group == 3 else None)
    engine.add(cold)
    more, failures = finish_requests(engine)
    assert early[0] == refs[1].digest and not failures
    assert {"running": tokens + more["running"], "cold": more["cold"]} == expected


@pytest.mark.parametrize(("threads", "divide_lora_from"), [(LEADER, None), (OTHERS, None), (OTHERS, 1)])
def test_a_copy_that_fails_on_one_rank_under_a_step_fails_its_request_alone(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    threads: str,
    divide_lora_from: int | None,
) -> None:
    engine = make_group(divide_lora_from=divide_lora_from)
    waiting, cold = cold_request("waiting", refs[1]), cold_request("cold", refs[0])
    launched = _launches(engine, monkeypatch)

    def fail(group: int) -> None:
        if group == 4 and _on(threads):
            _hold_until(lambda: launched)
            raise RuntimeError("the link is down")

    hold_copies(monkeypatch, "cpu", fail)
    tokens, failures = run_requests(engine, cold)
    assert not tokens and [failure.request_ids for failure in failures] == [("cold",)]
    assert launched == [True]
    monkeypatch.undo()
    assert run_requests(engine, waiting) == (resident(waiting), [])
    assert run_requests(engine, cold) == (resident(cold), [])


def test_a_rank_that_waits_in_vain_has_all_ranks_give_the_step_up(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    early: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layer_arrival, "_TIMEOUT_S", 0.02)
    engine, request = make_group(), cold_request("cold", refs[0])

    def stall(group: int) -> None:
        if group == 4 and _on(OTHERS):
            _hold_until(lambda: early)
            time.sleep(0.3)

    hold_copies(monkeypatch, "cpu", stall)
    assert run_requests(engine, request) == (resident(request), [])
    assert set(early) == {refs[0].digest}


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads of the ranks in whose steps CPU processes have computed something."""
    threads: set[str] = set()
    run = TorchExchange.run

    def spy(exchange: TorchExchange, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
        added = run(exchange, layer, group, x)
        if added is not None:
            threads.add(threading.current_thread().name)
        return added

    monkeypatch.setattr(TorchExchange, "run", spy)
    return threads


@NEEDS_CPU_ASSIST
@pytest.mark.slow
def test_the_processes_of_each_rank_compute_its_share(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    helped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, request = make_group("cpu_assist"), cold_request("cold", refs[0], num_prompt_tokens=20)
    num_ranks = 1 + len(engine.ranks)
    helped.clear()  # the start has measured exchanges
    hold_copies(monkeypatch, "cpu", lambda group: _hold_until(lambda: len(helped) == num_ranks) if group else None)
    assert run_requests(engine, request) == (resident(request), [])
    assert len(helped) == num_ranks


@NEEDS_CPU_ASSIST
@pytest.mark.slow
def test_a_process_of_another_rank_that_stands_still_has_all_ranks_wait_for_the_adapter(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    helped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assistant, "_CPU_WAIT_S", 3.0)  # of the others, who are busy
    engine, request = make_group("cpu_assist"), cold_request("cold", refs[0])
    rank: Any = engine.ranks[0]
    leader = threading.current_thread().name
    helped.clear()
    os.kill(rank.engine._assist._assist.pool.pid(0), signal.SIGSTOP)
    hold_copies(monkeypatch, "cpu", lambda group: _hold_until(lambda: leader in helped) if group == 1 else None)
    assert run_requests(engine, request) == (resident(request), [])
    assert leader in helped


@pytest.mark.slow
def test_a_group_says_the_same_while_processes_of_ranks_are_killed(
    make_group: MakeGroup,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    helped: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, requests = make_group("cpu_assist"), [cold_request(f"{number}", ref) for number, ref in enumerate(refs)]
    leader, last = cast(Any, engine)._cold_starts, cast(Any, engine.ranks[-1]).engine._assist
    own, pool = leader._assist.pool, last._assist.pool
    assert run_requests(engine, requests[0]) == (resident(requests[0]), [])

    def hold(group: int) -> None:
        """Until the leader's processes have helped; then those of another rank may be in the midst of it."""
        if group == 1:
            _hold_until(lambda: helped)
        if group == 2 and _on(OTHERS) and (pid := pool.pid(0)) is not None:
            os.kill(pid, signal.SIGKILL)

    hold_copies(monkeypatch, "cpu", hold)
    for request in requests[1:]:
        expected = resident(request)
        wait_for(lambda: own.is_free and own.ready)
        helped.clear()
        assert run_requests(engine, request) == (expected, [])


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_under_a_prefill_ends_the_group_and_the_request_goes_on_elsewhere(
    model: Path,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    signal_number: signal.Signals,
) -> None:
    """The other rank is a process."""
    request = cold_request("cold", refs[0])
    engine = Engine(_config(model, "layerwise"), "cpu,cpu", others=GroupSettings())
    launched = _launches(engine, monkeypatch)
    with ThreadPoolExecutor(1) as thread:
        engine.slow_copies(_MANY_COPIES)
        running = thread.submit(run_requests, engine, request)
        _hold_until(lambda: launched)
        os.kill(rank_pids(engine)[0], signal_number)
        with pytest.raises(RankLost, match="rank 1"):
            running.result(DEADLINE_S)
    engine.close()
    assert launched == [True]
    other = Engine(_config(model, "layerwise"))
    try:
        assert run_requests(other, request) == (resident(request), [])
    finally:
        other.close()
