"""A simulated worker sends the same messages as a real worker's step loop."""

from pathlib import Path

import pytest

from punica_serve.base_model.lora_layout import USUAL_LIMITS, pool_pages
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError
from punica_serve.performance.profile import PerformanceProfile
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.protocol import (
    AdaptersCached,
    AssignmentId,
    AssignmentsFailed,
    Forget,
    KvWindow,
    PrefixCaching,
    Request,
    Reset,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
)
from punica_serve.simulation.tokens import token_at
from punica_serve.simulation.worker import SimulatedWorker, simulated_gpu_info
from simulated_gpus import VOCAB_SIZE, adapter_ref, gpu_info, make_request
from tiny_config import tiny_config

UUID = "SIM-1"


@pytest.fixture
def worker(profile: PerformanceProfile) -> SimulatedWorker:
    return SimulatedWorker(gpu_info(), StepTimeModel(profile), prefill_budget=PrefillBudget(8), vocab_size=VOCAB_SIZE)


def _start(seq: int, counter: int, request: Request) -> StartRequest:
    return StartRequest(UUID, seq, AssignmentId(77, counter), request)


def _step(worker: SimulatedWorker, now_s: float = 0.0) -> StepReport:
    assert worker.begin_step(now_s) is not None
    return worker.end_step()


def test_a_start_is_acknowledged_before_it_runs(worker: SimulatedWorker) -> None:
    [report] = worker.apply([_start(1, 10, make_request(1))], 0.0)
    assert isinstance(report, StepReport)
    assert (report.applied_seq, report.step, report.assignments, report.batch_size) == (1, 0, (), 0)
    assert report.free_kv_pages == 30
    assert worker.apply([], 0.0) == []


def test_a_step_is_reported_in_columns(worker: SimulatedWorker) -> None:
    worker.apply([_start(1, 10, make_request(1, 5)), _start(2, 11, make_request(2, 6, max_tokens=1))], 0.0)
    first, second = _step(worker), _step(worker)
    assert (first.assignments, first.positions, first.token_ids) == ((10,), (0,), (token_at(1, 0, VOCAB_SIZE),))
    assert (first.incarnation, first.step, first.batch_size, first.num_prefill_tokens) == (77, 1, 1, 5)
    assert first.duration_s == pytest.approx(0.015)
    assert (second.assignments, second.positions, second.finished) == ((11, 10), (0, 1), ((11, "length"),))
    assert (second.batch_size, second.num_prefill_tokens, second.num_adapters) == (2, 6, 0)
    assert worker.num_requests == 1
    worker.check_invariants()


def test_the_end_of_a_batch_is_reported_once(worker: SimulatedWorker) -> None:
    worker.apply([_start(1, 10, make_request(1, max_tokens=1))], 0.0)
    _step(worker)
    assert worker.begin_step(0.0) is None
    [report] = worker.idle()
    assert (report.batch_size, report.free_kv_pages) == (0, 32)
    assert worker.idle() == []


def test_a_stop_gives_the_pages_back(worker: SimulatedWorker) -> None:
    worker.apply([_start(1, 10, make_request(1))], 0.0)
    _step(worker)
    [report] = worker.apply([StopRequest(UUID, 2, AssignmentId(77, 10)), StopRequest(UUID, 3, AssignmentId(77, 99))], 0)
    assert isinstance(report, StepReport)
    assert (report.applied_seq, report.free_kv_pages) == (3, 32)
    assert worker.begin_step(0.0) is None


def test_a_new_start_of_the_same_request_replaces_the_old_one(worker: SimulatedWorker) -> None:
    worker.apply([_start(1, 10, make_request(1)), _start(2, 20, make_request(1))], 0.0)
    assert _step(worker).assignments == (20,)
    assert worker.num_requests == 1


def test_a_request_that_can_never_run_fails_permanently(worker: SimulatedWorker) -> None:
    failed, report = worker.apply([_start(1, 10, make_request(1, 500))], 0.0)
    assert isinstance(failed, AssignmentsFailed)
    assert (failed.assignments, failed.permanent) == ((AssignmentId(77, 10),), True)
    assert isinstance(report, StepReport)
    assert report.free_kv_pages == 32


def test_adapters_are_reported_when_loaded_and_again_after_a_reset(worker: SimulatedWorker) -> None:
    worker.apply([_start(1, 10, make_request(1, adapter=adapter_ref("a")))], 0.0)
    assert worker.begin_step(0.0) is None
    assert worker.wakes_at_s == pytest.approx(0.010)
    assert _step(worker, 0.011).resident == ("a",)
    assert _step(worker).resident is None
    [report] = worker.apply([Reset(5)], 0.0)
    assert isinstance(report, StepReport)
    assert (report.epoch, report.applied_seq, report.free_kv_pages, report.resident) == (5, 0, 32, ("a",))
    assert worker.num_requests == 0


def test_a_reset_has_known_prefixes_told_again(profile: PerformanceProfile) -> None:
    info = gpu_info(prefix_caching=PrefixCaching("simulated"))
    worker = SimulatedWorker(info, StepTimeModel(profile), prefill_budget=PrefillBudget(64), vocab_size=VOCAB_SIZE)
    worker.apply([_start(1, 10, make_request(1, 40))], 0.0)
    told = _step(worker).prefix_hints
    assert told and _step(worker).prefix_hints == ()
    [report] = worker.apply([Reset(5)], 0.0)
    assert isinstance(report, StepReport) and report.prefix_hints == told


def test_prefetches_and_evictions_are_reported(worker: SimulatedWorker) -> None:
    a, b = adapter_ref("a"), adapter_ref("b")
    worker.apply([Warm(UUID, a), Warm(UUID, b)], 0.0)
    assert worker.cached() == [AdaptersCached(UUID, ("a", "b"), ())] and worker.cached() == []
    worker.begin_step(1.0)
    [report] = worker.idle()
    assert report.resident == ("a", "b")
    worker.apply([Forget("a"), Reset(1)], 1.0)
    assert worker.cached() == [AdaptersCached(UUID, ("b",), ("a",))], "all, after a Reset"
    [gone] = worker.apply([Forget("b")], 1.0)
    assert isinstance(gone, StepReport) and gone.resident == ()
    assert worker.cached() == [AdaptersCached(UUID, (), ("b",))]
    worker.check_invariants()


def test_a_hint_reaches_host_memory_alone_and_nobody_waits_for_its_effect(worker: SimulatedWorker) -> None:
    assert worker.apply([Warm(UUID, adapter_ref("a"), host_only=True)], 0.0) == []
    assert worker.cached() == [AdaptersCached(UUID, ("a",), ())]
    assert worker.begin_step(1.0) is None and worker.idle() == []


def test_a_simulated_gpu_has_the_size_of_the_config(tmp_path: Path) -> None:
    engine = EngineConfig(model=tmp_path, max_batch_size=8, page_size=16, num_kv_pages=100, num_lora_pages=7)
    info = simulated_gpu_info(engine, tiny_config(windows=(300, 200)), UUID)
    assert (info.max_batch_size, info.page_size, info.num_kv_pages, info.device) == (8, 16, 100, "simulated")
    assert info.window == KvWindow(300, 512)
    assert info.num_lora_pages == pool_pages(7, USUAL_LIMITS)
    with pytest.raises(ConfigError, match=r"set `engine.num_kv_pages`"):
        simulated_gpu_info(engine.model_copy(update={"num_kv_pages": None}), tiny_config(), UUID)
