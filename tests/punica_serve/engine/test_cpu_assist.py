"""Prefills whose LoRA CPU processes compute while the adapter is copied: the tokens are those of a resident adapter.

Processes are killed, stopped and slow, and the device takes over at every boundary of layers.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import msgspec
import pytest
from torch import Tensor

from cold_requests import NUM_GROUPS, NUM_LAYERS, cold_adapters, cold_request, evict, hold_copies, run_requests
from cpu_assist_host import NEEDS_CPU_ASSIST
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.layer_arrival import CpuArrival, layer_groups
from punica_serve.engine.cpu_assist import assistant
from punica_serve.engine.cpu_assist.assist_forecast import AssistForecast
from punica_serve.engine.cpu_assist.assist_job import AssistJob
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.process_pool import ProcessPool
from punica_serve.engine.cpu_assist.torch_exchange import TorchExchange
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure
from punica_serve.protocol import AdapterRef, LoraGroup
from waits import DEADLINE_S

pytestmark = NEEDS_CPU_ASSIST

_FIRST_LAYERS = [layers.start for layers in layer_groups(NUM_LAYERS)]

#: Called before a layer's exchanges, on the thread of the step.
Before = Callable[[int], None]


@pytest.fixture(scope="module")
def model(make_llama: Callable[..., Path]) -> Path:
    return make_llama(num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def refs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return cold_adapters(model, tmp_path_factory.mktemp("adapters"), 2)


@pytest.fixture(scope="module")
def open_engine(model: Path) -> Iterator[Callable[[str], Engine]]:
    """One engine for each mode, since processes take seconds to start."""
    engines: dict[str, Engine] = {}

    def open_engine(mode: str) -> Engine:
        settings = {"dtype": "float32", "page_size": 4, "num_kv_pages": 256, "num_lora_pages": 64, "max_batch_size": 4}
        if mode not in engines:
            config = EngineConfig(
                model=model,
                cold_start=mode,
                prefill_budget_tokens=16,
                cpu_assist_processes=2,
                prefix_caching=False,
                **settings,
            )
            engines[mode] = Engine(config)
        return engines[mode]

    yield open_engine
    for engine in engines.values():
        engine.close()


@pytest.fixture
def engine(open_engine: Callable[[str], Engine], refs: list[AdapterRef]) -> Engine:
    """It has no adapter, and all of its processes are ready."""
    engine = open_engine("cpu_assist")
    evict(engine, *refs)
    assert _pool(engine).wait_until_ready(DEADLINE_S)
    return engine


@pytest.fixture
def resident(open_engine: Callable[[str], Engine]) -> Callable[..., tuple[dict[str, list[int]], list[Failure]]]:
    """Tokens from an engine that waits for all of an adapter."""
    return lambda *requests: run_requests(open_engine("wait"), *requests)


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Each layer and group of a step with help: the layer, and whether a process computed it."""
    seen: list[tuple[int, bool]] = []
    run = TorchExchange.run

    def spy(exchange: TorchExchange, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
        added = run(exchange, layer, group, x)
        seen.append((layer, added is not None))
        return added

    monkeypatch.setattr(TorchExchange, "run", spy)
    return seen


@pytest.fixture
def before_layer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Before], None]:
    def install(before: Before) -> None:
        run = TorchExchange.run

        def spy(exchange: TorchExchange, layer: int, group: LoraGroup, x: Tensor) -> Tensor | None:
            if group == "qkv":
                before(layer)
            return run(exchange, layer, group, x)

        monkeypatch.setattr(TorchExchange, "run", spy)

    return install


def _pool(engine: Engine) -> ProcessPool:
    assert engine._assist is not None
    return engine._assist.pool


def _pids(engine: Engine) -> list[int]:
    return [pid for number in range(2) if (pid := _pool(engine).pid(number)) is not None]


@pytest.mark.parametrize("group", [*range(1, NUM_GROUPS), NUM_GROUPS])
def test_the_device_takes_over_at_each_boundary(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    exchanges: list[tuple[int, bool]],
    before_layer: Callable[[Before], None],
    group: int,
) -> None:
    """No layer arrives before the step reaches the group's first one, and then all do."""
    may_arrive, request = Event(), cold_request("cold", refs[0])
    first = [*_FIRST_LAYERS, NUM_LAYERS][group]

    def take_over(layer: int) -> None:
        if layer == first:
            may_arrive.set()
            _the_arrival(engine, refs[0]).wait(NUM_LAYERS - 1)

    def is_due() -> bool:
        return may_arrive.is_set() or len(exchanges) == 4 * NUM_LAYERS

    hold_copies(monkeypatch, "cpu", lambda _: _wait_for(is_due, "the step"))
    before_layer(take_over)
    assert run_requests(engine, request) == resident(request)
    assert [by_process for _, by_process in exchanges] == [layer < first for layer, _ in exchanges]
    assert len(exchanges) == 4 * NUM_LAYERS


def test_chunks_of_a_long_prompt_and_requests_of_one_adapter(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    exchanges: list[tuple[int, bool]],
) -> None:
    hold_copies(monkeypatch, "cpu", lambda _: _wait_for(lambda: bool(exchanges), "an exchange"))
    requests = [cold_request("long", refs[0], num_prompt_tokens=40), cold_request("other", refs[0])]
    requests.append(cold_request("short", refs[1], num_prompt_tokens=1))
    assert run_requests(engine, *requests) == resident(*requests)


def test_rows_before_an_invocation_stay_the_bases(
    engine: Engine, refs: list[AdapterRef], resident: Callable[..., object]
) -> None:
    """Processes add LoRA to all rows of a prefill, so one with rows of the base gets none of their help."""
    prompt = cold_request("plain", refs[0], num_prompt_tokens=12).prompt_ids
    activated = msgspec.structs.replace(refs[0], invocation=prompt[7:9])
    request = cold_request("activated", activated, num_prompt_tokens=12)
    assert run_requests(engine, request) == resident(request)


def test_decodes_are_not_held_by_exchanges(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    exchanges: list[tuple[int, bool]],
) -> None:
    running, cold = cold_request("running", None, max_tokens=40), cold_request("cold", refs[0])
    expected = resident(running, cold)
    engine.add(running)
    first = engine.step().tokens
    tokens, failures = run_requests(engine, cold)
    tokens["running"] = [token.token_id for token in first] + tokens["running"]
    assert (tokens, failures) == expected
    assert not exchanges


def test_processes_that_are_stopped_cost_their_prefill_alone(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its request waits for all of its adapter instead, and others replace the processes."""
    monkeypatch.setattr(assistant, "_CPU_WAIT_S", 0.05)
    request, other, stopped = cold_request("cold", refs[0]), cold_request("other", None), _pids(engine)
    given_up = _tell_of_suspicions(monkeypatch)
    hold_copies(monkeypatch, "cpu", lambda _: given_up.wait(DEADLINE_S))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert run_requests(engine, request, other) == resident(request, other)
    _wait_for(lambda: _pool(engine).is_free, "the processes' end")
    assert [record.message for record in caplog.records if "the prefill of" in record.message] == [
        "CPU processes of `engine.cold_start` did not answer within 50 ms, or 50 ms in all; the prefill of 10 tokens"
        " starts again when its adapter is on the device"
    ]
    remaining = set(stopped) & set(_pids(engine))
    for pid in remaining:
        os.kill(pid, signal.SIGCONT)
    num_killed = sum("did not answer and was killed" in record.message for record in caplog.records)
    assert num_killed == len(stopped) - len(remaining) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [0, 4])
def test_a_process_that_dies_at_any_point_costs_its_prefill_alone(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    monkeypatch: pytest.MonkeyPatch,
    before_layer: Callable[[Before], None],
    exchanges: list[tuple[int, bool]],
    caplog: pytest.LogCaptureFixture,
    kill_at: int,
) -> None:
    """Nobody waits for its answer: the step's wait has no end within this test."""
    monkeypatch.setattr(assistant, "_CPU_WAIT_S", 2 * DEADLINE_S)
    request, victim = cold_request("cold", refs[0]), _pids(engine)[0]
    given_up = _tell_of_suspicions(monkeypatch)
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
    assert _pool(engine).wait_until_ready(DEADLINE_S), "another process replaces it"
    evict(engine, *refs)
    exchanges.clear()
    again = cold_request("again", refs[1])
    assert run_requests(engine, again) == resident(again)
    assert exchanges, "its processes help again"


def test_a_process_that_is_slow_is_waited_for(
    engine: Engine,
    refs: list[AdapterRef],
    resident: Callable[..., object],
    before_layer: Callable[[Before], None],
    caplog: pytest.LogCaptureFixture,
    exchanges: list[tuple[int, bool]],
) -> None:
    pid = _pids(engine)[0]

    def pause(layer: int) -> None:
        os.kill(pid, signal.SIGSTOP if layer % 2 else signal.SIGCONT)

    # Each pause ends in the exchange after the next; the last layer's number is even.
    before_layer(lambda layer: pause(layer) if layer in (0, NUM_LAYERS - 1) else None)
    request = cold_request("cold", refs[0])
    assert run_requests(engine, request) == resident(request)
    assert exchanges and not caplog.records


def test_auto_gives_the_same_tokens_whatever_it_chooses(
    engine: Engine, refs: list[AdapterRef], resident: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine._assist, "_mode", "auto")
    for number, pays in enumerate((True, False)):
        monkeypatch.setattr(AssistForecast, "pays", lambda *_, pays=pays: pays)
        request = cold_request(f"{number}", refs[number])
        assert run_requests(engine, request) == resident(request)


def _tell_of_suspicions(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once a step has waited for processes in vain."""
    told, suspect = Event(), CpuAssist.suspect

    def spy(assist: CpuAssist, job: AssistJob) -> None:
        suspect(assist, job)
        told.set()

    monkeypatch.setattr(CpuAssist, "suspect", spy)
    return told


def _the_arrival(engine: Engine, ref: AdapterRef) -> CpuArrival:
    arrival = engine._loader.arrivals.arrival(ref.digest)
    assert isinstance(arrival, CpuArrival)
    return arrival


def _wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.005)
