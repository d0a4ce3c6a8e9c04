import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from punica_runner import simulated_steps
from punica_runner.supervisor import engine_worker_command
from punica_runner.worker_process import WorkerDied, run_worker
from punica_runner.worker_tiers import WorkerTiers
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.config.simulation_section import SimulationConfig
from punica_serve.protocol import AssignmentId, Request, SamplingParams, StartRequest, StepReport
from punica_serve.shapes import shape_folder, shape_of
from punica_serve.simulation.tokens import token_at
from waits import DEADLINE_S


def config(**engine: Any) -> ClusterConfig:
    return ClusterConfig(
        engine=EngineConfig(model=shape_folder("llama-2-7b"), **engine),
        runner=RunnerConfig(devices=("simulated",)),
        simulation=SimulationConfig(speed=50.0),
    )


def start(seq: int, *, seed: int, max_tokens: int, incarnation: int = 1) -> StartRequest:
    request = Request(f"r{seq}", seq, (1, 2, 3), SamplingParams(seed=seed, max_tokens=max_tokens, ignore_eos=True))
    return StartRequest("gpu", seq, AssignmentId(incarnation, seq), request)


async def test_a_simulated_worker_runs_requests_in_a_process_of_its_own() -> None:
    cluster = config(num_kv_pages=100)
    tokens: dict[int, list[int]] = {1: [], 2: []}
    finished: dict[int, str] = {}
    async with (
        asyncio.timeout(DEADLINE_S),
        run_worker(engine_worker_command(cluster, "host", 0), cluster.runner, WorkerTiers()) as worker,
    ):
        assert worker.gpu.uuid.startswith("SIM-") and worker.gpu.num_kv_pages == 100
        worker.send(start(1, seed=7, max_tokens=5))
        worker.send(start(2, seed=8, max_tokens=20))
        while len(finished) < 2:
            report = await worker.receive()
            assert isinstance(report, StepReport)
            for counter, position, token_id in zip(report.assignments, report.positions, report.token_ids, strict=True):
                assert position == len(tokens[counter])
                tokens[counter].append(token_id)
            finished |= dict(report.finished)
    vocab_size = shape_of("llama-2-7b").vocab_size
    assert tokens == {
        1: [token_at(7, position, vocab_size) for position in range(5)],
        2: [token_at(8, position, vocab_size) for position in range(20)],
    }
    assert finished == {1: "length", 2: "length"}
    assert isinstance(report, StepReport) and report.free_kv_pages == 100


async def test_it_tells_what_limits_the_batch_of_auto() -> None:
    cluster = config(max_batch_size="auto", num_kv_pages=3000, target_step_ms=1000.0)
    command = engine_worker_command(cluster, "host", 0)
    async with asyncio.timeout(DEADLINE_S), run_worker(command, cluster.runner, WorkerTiers()) as worker:
        assert (worker.gpu.max_batch_size, worker.gpu.batch_limit) == (64, "num_kv_pages")
        assert worker.gpu.max_prefills == 2


async def test_after_a_reset_reports_name_the_new_incarnation() -> None:
    cluster = config(num_kv_pages=100)
    async with (
        asyncio.timeout(DEADLINE_S),
        run_worker(engine_worker_command(cluster, "host", 0), cluster.runner, WorkerTiers()) as worker,
    ):
        worker.send(start(1, seed=7, max_tokens=1000))
        while not (report := await worker.receive()).assignments:  # type: ignore[union-attr]
            pass
        worker.reset()
        worker.send(start(1, seed=7, max_tokens=1000, incarnation=2))
        while not (report := await worker.receive()).assignments:  # type: ignore[union-attr]
            pass
    assert isinstance(report, StepReport)
    assert (report.epoch, report.incarnation, report.assignments, report.positions) == (1, 2, (1,), (0,))


async def test_a_simulated_gpu_must_be_given_a_size() -> None:
    cluster = config()
    with pytest.raises(WorkerDied, match=r"set `engine\.num_kv_pages`") as death:
        async with run_worker(engine_worker_command(cluster, "host", 0), cluster.runner, WorkerTiers()):
            pass
    assert death.value.is_permanent


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records sleeps. Only they advance the time, each by 1 ms too much."""
    sleeps: list[float] = []
    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        sleeps.append(round(seconds, 6))
        now += seconds + 0.001 if seconds else 0.0

    monkeypatch.setattr(simulated_steps, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    return sleeps


def test_steps_follow_each_other_without_drift(slept: list[float]) -> None:
    clock = simulated_steps.Clock(speed=1.0)
    for _ in range(3):
        clock.pass_step(0.020)
    assert slept == [0.020, 0.019, 0.019], "what one sleep took too long is taken from the next"
    assert clock.next_step_s() == pytest.approx(0.060)


def test_at_twice_the_speed_steps_take_half_the_time(slept: list[float]) -> None:
    clock = simulated_steps.Clock(speed=2.0)
    clock.pass_step(0.020)
    assert slept == [0.010] and clock.now_s() == pytest.approx(0.022)


def test_idle_times_are_not_caught_up(slept: list[float]) -> None:
    clock = simulated_steps.Clock(speed=1.0)
    clock.pass_step(5.0)
    assert clock.idle_wait_s(None) == simulated_steps.IDLE_WAIT_S
    assert clock.idle_wait_s(wakes_at_s=clock.now_s() + 0.25) == pytest.approx(0.25)
    assert clock.next_step_s() == pytest.approx(clock.now_s())


def test_a_simulated_worker_never_imports_torch(tmp_path: Path) -> None:
    code = "import sys, punica_runner.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
