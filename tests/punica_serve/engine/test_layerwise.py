"""Prefills that start while their adapter is still being copied: the tokens are those of an adapter that is there.

Copies are held before one of the groups of layers, at each of them in turn, so that the step runs into every gap.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cold_requests
from cold_requests import (
    MODEL_TYPES,
    NUM_GROUPS,
    cold_adapters,
    cold_model,
    cold_request,
    finish_requests,
    run_requests,
)
from engine_fixtures import MakeEngine
from punica_serve.engine import cold_starts
from punica_serve.engine.adapters import layer_arrival
from punica_serve.engine.adapters.copy_forecast import CopyForecast
from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.adapters.step_arrivals import StepArrivals
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_clock import StepClock
from punica_serve.protocol import AdapterRef, Request
from waits import DEADLINE_S

_GPU_PAUSE_CYCLES = 30_000_000  # more than 10 ms

Before = Callable[[int], None]


@pytest.fixture(scope="module", params=MODEL_TYPES)
def model(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> Path:
    return cold_model(make_model, request.param)


@pytest.fixture(scope="module")
def refs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return cold_adapters(model, tmp_path_factory.mktemp("adapters"), 3)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.timeout(600)])])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(make_engine: MakeEngine, model: Path, device: str) -> Callable[..., Engine]:
    def make(**settings: Any) -> Engine:
        few = {"prefill_budget_tokens": 16, "max_batch_size": 4}
        return make_engine(model, device, cold_start="layerwise", **{**few, **settings})

    return make


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The adapter of each step that is launched before all of its layers are there."""
    digests: list[str] = []
    arrival = StepArrivals.arrival

    def spy(arrivals: StepArrivals, digest: str) -> Arrival | None:
        found = arrival(arrivals, digest)
        if found is not None and found.num_arrived < NUM_GROUPS:
            digests.append(digest)
        return found

    monkeypatch.setattr(StepArrivals, "arrival", spy)
    return digests


@pytest.fixture
def hold_copies(monkeypatch: pytest.MonkeyPatch, device: str) -> Callable[[Before], None]:
    """Calls a function before the copies of each group of layers are queued, instead of the one before it."""
    befores: list[Before] = [lambda _: None]
    cold_requests.hold_copies(monkeypatch, device, lambda group: befores[-1](group))
    return befores.append


def _pause(device: str) -> None:
    """Holds the copies that are queued next."""
    if device == "cpu":
        time.sleep(0.03)
    else:
        torch.cuda._sleep(_GPU_PAUSE_CYCLES)


def _pause_for(joined: list[str], device: str) -> None:
    """Holds the copies that are queued next under a step; however late it comes on a CPU."""
    deadline_s = time.monotonic() + DEADLINE_S
    while device == "cpu" and not joined:
        assert time.monotonic() < deadline_s, "no step waits for the copy"
        time.sleep(0.001)
    _pause(device)


@pytest.fixture
def resident(make_engine: MakeEngine, model: Path) -> Callable[..., dict[str, list[int]]]:
    """Tokens from an engine on a CPU that waits for all of an adapter."""

    def run(*requests: Request) -> dict[str, list[int]]:
        tokens, failures = run_requests(make_engine(model, cold_start="wait"), *requests)
        assert not failures
        return tokens

    return run


@pytest.mark.parametrize("late_group", range(1, NUM_GROUPS))
def test_a_prefill_alone_starts_at_once_and_waits_for_each_layer(
    make: Callable[..., Engine],
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
    joined: list[str],
    device: str,
    late_group: int,
) -> None:
    engine, request = make(), cold_request("cold", refs[0])
    hold_copies(lambda group: _pause_for(joined, device) if group == late_group else None)
    tokens, failures = run_requests(engine, request)
    assert (tokens, failures) == (resident(request), [])
    assert joined == [refs[0].digest]


def test_chunks_of_a_long_prompt_wait_for_layers_and_requests_of_one_adapter_share_its_arrival(
    make: Callable[..., Engine],
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
    joined: list[str],
    device: str,
) -> None:
    requests = [cold_request("long", refs[0], num_prompt_tokens=40), cold_request("other", refs[0])]
    engine = make()
    hold_copies(lambda group: _pause_for(joined, device) if group == 5 else None)
    assert run_requests(engine, *requests) == (resident(*requests), [])
    assert joined[0] == refs[0].digest


def test_decodes_do_not_wait_for_a_strangers_layers(
    make: Callable[..., Engine],
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
    joined: list[str],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
) -> None:
    """The link is so slow that the copy would hold a step for seconds."""
    monkeypatch.setattr(CopyForecast, "record_rate", lambda forecast, *_: setattr(forecast, "_rates", (1e3,)))
    running, cold = cold_request("running", refs[0], max_tokens=80), cold_request("cold", refs[1])
    engine = make()
    engine.prefetch_to_host(refs[1])
    while refs[1].digest not in engine.host_cache:
        engine.step()
        engine.wait(0.01)
    engine.add(running)
    tokens: dict[str, list[int]] = {"running": [], "cold": []}
    while not tokens["running"]:
        for token in engine.step().tokens:
            tokens[token.request_id].append(token.token_id)
        engine.wait(0.01)
    joined.clear()
    hold_copies(lambda group: _pause(device) if group == 7 else None)
    engine.add(cold)
    more, failures = finish_requests(engine)
    for name in tokens:
        tokens[name] += more[name]
    assert (tokens, failures) == (resident(running, cold), [])
    assert joined == []


def test_a_prefill_that_joins_decodes_changes_no_tokens(
    make: Callable[..., Engine],
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
    joined: list[str],
    monkeypatch: pytest.MonkeyPatch,
    device: str,
) -> None:
    monkeypatch.setattr(cold_starts, "_MAX_HOLD_S", 1e9)
    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: 0.0)
    running, cold = cold_request("running", refs[0], max_tokens=60), cold_request("cold", refs[1])
    expected, engine = resident(running, cold), make()
    run_requests(engine, cold_request("measured", refs[2]))  # now the rate of copies is known
    joined.clear()
    engine.add(running)
    hold_copies(lambda group: _pause_for(joined, device) if group == 2 else None)
    while not joined:
        engine.step()
    joined.clear()
    engine.add(cold)
    tokens, failures = finish_requests(engine)
    assert joined == [refs[1].digest] and not failures
    assert tokens["cold"] == expected["cold"]
    assert expected["running"][-len(tokens["running"]) :] == tokens["running"]


def test_a_copy_that_fails_takes_only_its_own_requests_along(
    make: Callable[..., Engine],
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
) -> None:
    def fail(group: int) -> None:
        if group == 4:
            raise RuntimeError("the link is down")

    engine, running, cold = make(), cold_request("running", refs[0], max_tokens=30), cold_request("cold", refs[1])
    expected = resident(running)
    engine.add(running)
    tokens: dict[str, list[int]] = {"running": []}
    while not tokens["running"]:
        for token in engine.step().tokens:
            tokens["running"].append(token.token_id)
        engine.wait(0.01)
    hold_copies(fail)
    engine.add(cold)
    more, failures = finish_requests(engine)
    assert [failure.request_ids for failure in failures] == [("cold",)]
    assert {"running": tokens["running"] + more["running"]} == expected
    hold_copies(lambda group: None)
    assert run_requests(engine, cold) == (resident(cold), [])


def test_a_copy_that_fails_under_a_step_alone_fails_its_cold_request(
    make: Callable[..., Engine], refs: list[AdapterRef], hold_copies: Callable[[Before], None]
) -> None:
    def fail(group: int) -> None:
        if group == 4:
            time.sleep(0.05)
            raise RuntimeError("the link is down")

    engine = make()
    hold_copies(fail)
    tokens, failures = run_requests(engine, cold_request("cold", refs[0]))
    assert not tokens and [failure.request_ids for failure in failures] == [("cold",)]


def test_a_copy_that_is_much_too_slow_is_waited_for_as_a_whole(
    make_engine: MakeEngine,
    model: Path,
    device: str,
    refs: list[AdapterRef],
    resident: Callable[..., dict[str, list[int]]],
    hold_copies: Callable[[Before], None],
    joined: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU's copies can't hang alone: they end, or the device has failed."""
    if device != "cpu":
        pytest.skip("only a CPU waits as it runs a step")
    monkeypatch.setattr(layer_arrival, "_TIMEOUT_S", 0.01)
    engine, request = make_engine(model, cold_start="layerwise"), cold_request("cold", refs[0])

    def stall(group: int) -> None:
        if group == 4:
            _pause_for(joined, device)
            time.sleep(0.3)

    hold_copies(stall)
    assert run_requests(engine, request) == (resident(request), [])
    assert joined == [refs[0].digest], "the next step waits for all of it"
