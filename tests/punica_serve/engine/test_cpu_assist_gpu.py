"""CPU assistance of a GPU's steps: within CUDA graphs, with processes that are killed, stopped and late.

Copies are held on their stream for longer and longer, so that the device takes over at every point of a prefill.
The machine must be idle: processes that come late, as beside parallel workers of pytest, fail these tests.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
import torch

from cold_requests import NUM_LAYERS, cold_adapters, cold_request, evict, hold_copies, run_requests
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.cpu_assist import assistant
from punica_serve.engine.cpu_assist.assist_job import AssistJob, WaitLimits
from punica_serve.engine.cpu_assist.assistant import CpuAssist
from punica_serve.engine.cpu_assist.process_pool import ProcessPool
from punica_serve.engine.cuda.cuda_runner import CudaRunner
from punica_serve.engine.engine import Engine
from punica_serve.engine.step_output import Failure
from punica_serve.protocol import AdapterRef
from waits import DEADLINE_S

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

_NUM_ADAPTERS = 4
_CYCLES_PER_MS = 1_800_000

Tokens = dict[str, list[int]]
Resident = Callable[..., tuple[Tokens, list[Failure]]]


@pytest.fixture(scope="module")
def model(make_llama: Callable[..., Path]) -> Path:
    return make_llama(num_hidden_layers=NUM_LAYERS)


@pytest.fixture(scope="module")
def refs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterRef]:
    return cold_adapters(model, tmp_path_factory.mktemp("adapters"), _NUM_ADAPTERS)


@pytest.fixture(scope="module")
def open_engine(model: Path) -> Iterator[Callable[..., Engine]]:
    """One engine for each mode and device."""
    engines: dict[tuple[str, str], Engine] = {}

    def open_engine(mode: str, device: str = "cuda:0") -> Engine:
        if (mode, device) not in engines:
            config = EngineConfig(
                model=model,
                cold_start=mode,
                dtype="float32",
                page_size=4,
                num_kv_pages=256,
                num_lora_pages=64,
                max_batch_size=4,
                prefill_budget_tokens=16,
                cpu_assist_processes=3,
            )
            engines[mode, device] = Engine(config, device)
        return engines[mode, device]

    yield open_engine
    for engine in engines.values():
        engine.close()


@pytest.fixture
def resident(open_engine: Callable[..., Engine]) -> Resident:
    """Tokens from an engine on a CPU that waits for all of an adapter."""
    return lambda *requests: run_requests(open_engine("wait", "cpu"), *requests)


@pytest.fixture(params=["cpu_assist", "auto"])
def engine(open_engine: Callable[..., Engine], refs: list[AdapterRef], request: pytest.FixtureRequest) -> Engine:
    return _cold(open_engine(request.param), refs)


@pytest.fixture
def helped(open_engine: Callable[..., Engine], refs: list[AdapterRef]) -> Engine:
    """An engine that takes help whenever it can."""
    return _cold(open_engine("cpu_assist"), refs)


def _cold(engine: Engine, refs: list[AdapterRef]) -> Engine:
    evict(engine, *refs)
    assert _pool(engine).wait_until_ready(DEADLINE_S)
    _assist(engine).wait_until_free(DEADLINE_S)
    return engine


def _assist(engine: Engine) -> CpuAssist:
    assert engine._opening.tiers.assist is not None
    return engine._opening.tiers.assist


def _pool(engine: Engine) -> ProcessPool:
    return _assist(engine).pool


def _pids(engine: Engine) -> list[int]:
    return [pid for number in range(3) if (pid := _pool(engine).pid(number)) is not None]


def _num_exchanged(engine: Engine) -> int:
    """Exchanges of the newest job that processes computed."""
    memory = _assist(engine).memory
    return int((memory.sent_words == memory.read_job().key).sum())


def _tell_of_ends(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Set once the step of a job has ended."""
    told, end = Event(), AssistJob.end

    def spy(job: AssistJob) -> bool:
        is_good = end(job)
        told.set()
        return is_good

    monkeypatch.setattr(AssistJob, "end", spy)
    return told


def _wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assistant, "_LEAST_WAIT_S", 5.0)
    monkeypatch.setattr(assistant, "_MOST_WAIT_S", 5.0)


def _pause(ms: float) -> None:
    """Holds the stream at hand."""
    torch.cuda._sleep(int(ms * _CYCLES_PER_MS))


def test_the_host_looks_often_and_a_look_takes_as_long_as_it_takes(helped: Engine) -> None:
    """A look over the link takes a fraction of a microsecond at least; one that ended at once would not be measured."""
    runner = helped._runner
    assert isinstance(runner, CudaRunner) and runner._exchange is not None
    assert 1e-7 < runner._exchange.look_s < 2e-5


@pytest.mark.parametrize("held_ms", [0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2, 3, 5, 20])
def test_the_device_takes_over_at_any_point(
    engine: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch, held_ms: float
) -> None:
    """An exchange that nobody answers fails after 5 s: a process that is without a core for a while answers by then."""
    _wait_long(monkeypatch)
    hold_copies(monkeypatch, "cuda", lambda group: _pause(held_ms) if group == 0 and held_ms else None)
    requests = [cold_request(f"cold {number}", ref) for number, ref in enumerate(refs[:2])]
    assert run_requests(engine, *requests) == resident(*requests)
    assert not _assist(engine).memory.failed.item()


@pytest.mark.parametrize("late_group", range(8))
def test_layers_from_any_group_on_are_the_processes(
    helped: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch, late_group: int
) -> None:
    hold_copies(monkeypatch, "cuda", lambda group: _pause(30) if group == late_group else None)
    request = cold_request("cold", refs[0])
    assert run_requests(helped, request) == resident(request)
    assert _num_exchanged(helped) > 0


def test_a_prefill_whose_adapter_is_late_is_computed_by_processes_alone(
    helped: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy begins when the prefill has ended, however long that takes on this machine."""
    _wait_long(monkeypatch)
    has_ended = _tell_of_ends(monkeypatch)
    hold_copies(monkeypatch, "cuda", lambda group: has_ended.wait(DEADLINE_S) if group == 0 else None)
    for number, num_tokens in enumerate((2, 15, 16)):
        evict(helped, *refs)
        has_ended.clear()
        request = cold_request(f"cold {number}", refs[number], num_prompt_tokens=num_tokens)
        assert run_requests(helped, request) == resident(request)
        assert _assist(helped).memory.failed.item() != _assist(helped).memory.read_job().key
        assert _num_exchanged(helped) == 4 * NUM_LAYERS


def test_a_prompt_of_one_token_counts_as_a_decode_and_waits(
    helped: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_copies(monkeypatch, "cuda", lambda group: _pause(20) if group == 0 else None)
    key = _assist(helped).memory.read_job().key
    request = cold_request("short", refs[0], num_prompt_tokens=1)
    assert run_requests(helped, request) == resident(request)
    assert _assist(helped).memory.read_job().key == key


def test_long_prompts_and_requests_of_one_adapter(helped: Engine, refs: list[AdapterRef], resident: Resident) -> None:
    requests = [
        cold_request("long", refs[0], num_prompt_tokens=40),
        cold_request("same", refs[0]),
        cold_request("other", refs[1], num_prompt_tokens=17),
        cold_request("base", None),
    ]
    assert run_requests(helped, *requests) == resident(*requests)


def test_processes_that_are_stopped_cost_their_prefill_alone(
    helped: Engine,
    refs: list[AdapterRef],
    resident: Resident,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A word that never comes ends at the deadline of one exchange, which is a time and not a number of looks."""
    monkeypatch.setattr(assistant, "wait_limits", lambda *_: WaitLimits(in_all_s=5.0, for_one_s=0.05))
    hold_copies(monkeypatch, "cuda", lambda group: _pause(200) if group == 0 else None)
    request, base, pids = cold_request("cold", refs[0]), cold_request("base", None), _pids(helped)
    expected = resident(request, base)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    started_s = time.perf_counter()
    helped.add(request)
    while not any("did not answer within" in record.message for record in caplog.records):
        assert time.perf_counter() - started_s < 10.0, "the wait has no end"
        helped.step()
        helped.wait(0.01)
    waited_s = time.perf_counter() - started_s
    assert run_requests(helped, base) == expected
    assert 0.03 < waited_s < 1.0, f"a wait of 50 ms took {waited_s:.3f} s"
    for pid in set(pids) & set(_pids(helped)):
        os.kill(pid, signal.SIGCONT)


def test_a_process_that_is_killed_frees_the_device_at_once(
    helped: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device waits for its answer, and could for seconds."""
    for name in ("_LEAST_WAIT_S", "_MOST_WAIT_S"):
        monkeypatch.setattr(assistant, name, DEADLINE_S / 2)
    has_ended, memory, request = _tell_of_ends(monkeypatch), _assist(helped).memory, cold_request("cold", refs[0])
    hold_copies(monkeypatch, "cuda", lambda group: has_ended.wait(DEADLINE_S) if group == 0 else None)
    expected, key, victim = resident(request), memory.read_job().key + 1, _pids(helped)[0]
    took_s: list[float] = []

    def kill() -> None:
        while memory.sent_words[0] != key and not has_ended.wait(1e-4):
            pass
        killed_s = time.perf_counter()
        os.kill(victim, signal.SIGKILL)
        while memory.failed.item() != key and not has_ended.is_set():
            time.sleep(1e-5)
        took_s.append(time.perf_counter() - killed_s)

    os.kill(victim, signal.SIGSTOP)
    killer = Thread(target=kill)
    killer.start()
    assert run_requests(helped, request) == expected
    killer.join(DEADLINE_S)
    assert memory.failed.item() == key
    assert took_s[0] < 0.02, f"the device waited for {1e3 * took_s[0]:.1f} ms after the death"


def test_a_late_step_holds_no_other_request_for_longer(
    helped: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that come while a step waits in vain get their tokens after it, and the same ones."""
    monkeypatch.setattr(assistant, "_LEAST_WAIT_S", 0.02)
    monkeypatch.setattr(assistant, "_PATIENCE", 0.0)
    hold_copies(monkeypatch, "cuda", lambda group: _pause(100) if group == 0 else None)
    requests = [cold_request("cold", refs[0]), cold_request("base", None), cold_request("other", refs[1])]
    expected, pids = resident(*requests), _pids(helped)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert run_requests(helped, *requests) == expected
    finally:
        for pid in set(pids) & set(_pids(helped)):
            os.kill(pid, signal.SIGCONT)


def test_tokens_stay_while_processes_are_killed(
    engine: Engine, refs: list[AdapterRef], resident: Resident, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assistant, "_LEAST_WAIT_S", 0.01)
    hold_copies(monkeypatch, "cuda", lambda group: _pause(5) if group == 0 else None)
    requests = [cold_request(f"cold {number}", ref) for number, ref in enumerate(refs)]
    expected, is_over = resident(*requests), Event()

    def kill() -> None:
        for _ in range(6):
            if is_over.wait(0.02):
                return
            for number in _pool(engine).ready[:1]:
                if (pid := _pool(engine).pid(number)) is not None:
                    os.kill(pid, signal.SIGKILL)

    killer = Thread(target=kill)
    killer.start()
    try:
        for _ in range(10):
            assert run_requests(engine, *requests) == expected
            evict(engine, *refs)
    finally:
        is_over.set()
        killer.join()
