"""Prefills whose LoRA CPU processes compute while the adapter is copied: the tokens are those of a resident adapter."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

import msgspec
import pytest

from assisted_engine import BeforeLayer, Exchanges, Resident, arrival_of
from cold_requests import (
    MODEL_TYPES,
    NUM_GROUPS,
    NUM_LAYERS,
    cold_model,
    cold_request,
    evict,
    hold_copies,
    run_requests,
)
from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.lora_layout import USUAL_LORA_RANK
from punica_serve.engine import cold_starts
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.layer_arrival import layer_groups
from punica_serve.engine.adapters.step_arrivals import StepArrivals
from punica_serve.engine.batching.step_plan import StepPlan
from punica_serve.engine.cpu_assist.assist_forecast import AssistForecast, StepCosts
from punica_serve.engine.engine import Engine
from punica_serve.engine.in_flight import InFlight, launch
from punica_serve.engine.step_clock import StepClock
from punica_serve.engine.step_runner import StepRunner
from punica_serve.protocol import AdapterRef
from waits import wait_for

pytestmark = NEEDS_CPU_ASSIST

_FIRST_LAYERS = [layers.start for layers in layer_groups(NUM_LAYERS)]


@pytest.fixture(scope="module", params=MODEL_TYPES)
def model(request: pytest.FixtureRequest, make_model: Callable[..., Path]) -> Path:
    return cold_model(make_model, request.param)


@pytest.mark.parametrize("group", [*range(1, NUM_GROUPS), NUM_GROUPS])
def test_the_device_takes_over_at_each_boundary(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
    before_layer: BeforeLayer,
    group: int,
) -> None:
    """No layer arrives before the step reaches the group's first one, and then all do."""
    may_arrive, request = Event(), cold_request("cold", refs[0])
    first = [*_FIRST_LAYERS, NUM_LAYERS][group]

    def take_over(layer: int) -> None:
        if layer == first:
            may_arrive.set()
            arrival_of(engine, refs[0]).wait(NUM_LAYERS - 1)

    def is_due() -> bool:
        return may_arrive.is_set() or len(exchanges) == 4 * NUM_LAYERS

    hold_copies(monkeypatch, "cpu", lambda _: wait_for(is_due, "the step"))
    before_layer(take_over)
    assert run_requests(engine, request) == resident(request)
    assert [by_process for _, by_process in exchanges] == [layer < first for layer, _ in exchanges]
    assert len(exchanges) == 4 * NUM_LAYERS


def test_chunks_of_a_long_prompt_and_requests_of_one_adapter(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
) -> None:
    hold_copies(monkeypatch, "cpu", lambda _: wait_for(lambda: bool(exchanges), "an exchange"))
    requests = [cold_request("long", refs[0], num_prompt_tokens=40), cold_request("other", refs[0])]
    requests.append(cold_request("short", refs[1], num_prompt_tokens=1))
    assert run_requests(engine, *requests) == resident(*requests)


def test_auto_gives_the_same_tokens_whatever_it_chooses(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
) -> None:
    monkeypatch.setattr(engine._opening.tiers.assist, "_mode", "auto")
    run_requests(engine, cold_request("measured", refs[0]))  # now the rate of copies is known
    evict(engine, *refs)
    expects_help = True
    hold_copies(monkeypatch, "cpu", lambda _: wait_for(lambda: exchanges or not expects_help, "an exchange"))
    for number, pays in enumerate((True, False)):
        exchanges.clear()
        expects_help = pays
        monkeypatch.setattr(AssistForecast, "pays", lambda *_, pays=pays: pays)
        request = cold_request(f"{number}", refs[number])
        assert run_requests(engine, request) == resident(request)
        assert bool(exchanges) == pays


def test_auto_reckons_with_the_time_of_such_a_prefill(
    engine: Engine, refs: list[AdapterRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that decode are shorter: layers would seem to be needed earlier than they are."""
    run_requests(engine, cold_request("measured", refs[0]))
    evict(engine, *refs)
    monkeypatch.setattr(engine._opening.tiers.assist, "_mode", "auto")
    monkeypatch.setattr(StepClock, "prefill_s", lambda _, num_tokens: 100.0 * num_tokens)
    seen = list[float]()

    def pays(_: AssistForecast, arrives_in_s: list[float], step: StepForecast, costs: StepCosts) -> bool:
        seen.append(step.lasts_s)
        return False

    monkeypatch.setattr(AssistForecast, "pays", pays)
    hold_copies(monkeypatch, "cpu", lambda group: wait_for(lambda: seen, "a choice") if group else None)
    run_requests(engine, cold_request("cold", refs[0], num_prompt_tokens=11))
    assert set(seen) == {1100.0}


def test_rows_before_an_invocation_stay_the_bases(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
) -> None:
    """Processes add LoRA to all rows of a prefill, so one with rows of the base gets none of their help."""
    prompt = cold_request("plain", refs[0], num_prompt_tokens=12).prompt_ids
    activated = msgspec.structs.replace(refs[0], invocation=prompt[7:9])
    request = cold_request("activated", activated, num_prompt_tokens=12)
    hold_copies(monkeypatch, "cpu", lambda _: time.sleep(0.02))
    assert run_requests(engine, request) == resident(request)
    assert not exchanges


@pytest.mark.parametrize(
    ("rank", "modules"), [(12, ("embed_tokens", "down_proj", "lm_head")), (USUAL_LORA_RANK + 1, ("down_proj",))]
)
def test_adapters_that_are_wide_get_no_help(
    engine: Engine,
    model: Path,
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
    tmp_path: Path,
    rank: int,
    modules: tuple[str, ...],
) -> None:
    """Steps with help have LoRA up to the usual rank, and none of the embedding and the head."""
    config = read_model_config(model)
    folder = write_random_adapter(tmp_path, config, rank=rank, seed=9, scale=0.5, target_modules=modules)
    request = cold_request("cold", read_adapter(folder, config))
    hold_copies(monkeypatch, "cpu", lambda _: time.sleep(0.02))
    assert run_requests(engine, request) == resident(request)
    assert not exchanges


def test_decodes_are_not_held_by_exchanges(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
) -> None:
    running, cold = cold_request("running", None, max_tokens=40), cold_request("cold", refs[0])
    expected = resident(running, cold)
    engine.add(running)
    first = engine.step().tokens
    tokens, failures = run_requests(engine, cold)
    tokens["running"] = [token.token_id for token in first] + tokens["running"]
    assert (tokens, failures) == expected
    assert not exchanges


def test_a_prefill_that_joins_decodes_waits_for_layers_and_gets_no_help(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    exchanges: Exchanges,
) -> None:
    monkeypatch.setattr(cold_starts, "_MAX_HOLD_S", 1e9)
    monkeypatch.setattr(StepClock, "time_to_launch_s", lambda *_: 0.0)
    running, cold = cold_request("running", None, max_tokens=80), cold_request("cold", refs[0])
    expected = resident(running, cold)
    run_requests(engine, cold_request("measured", refs[1]))  # now the rate of copies is known
    exchanges.clear()
    early = list[StepPlan]()
    joined, join = list[str](), StepArrivals.join

    def spy_launch(plan: StepPlan, runner: StepRunner) -> InFlight:
        early.extend([plan] if plan.is_early else [])
        return launch(plan, runner)

    def spy(arrivals: StepArrivals, digest: str) -> None:
        joined.append(digest)
        join(arrivals, digest)

    monkeypatch.setattr(StepArrivals, "join", spy)
    monkeypatch.setattr(cold_starts, "launch", spy_launch)
    hold_copies(monkeypatch, "cpu", lambda group: wait_for(lambda: early, "the prefill") if group else None)
    engine.add(running)
    first = engine.step().tokens
    tokens, failures = run_requests(engine, cold)
    tokens["running"] = [token.token_id for token in first] + tokens["running"]
    assert (tokens, failures) == expected
    assert joined == [refs[0].digest] and not exchanges
