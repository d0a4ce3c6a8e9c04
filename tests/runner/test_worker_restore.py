"""Real workers that are killed: the next one gets its adapters back without a request."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from process_tree import command_line, descendants
from punica_runner import worker_tiers
from punica_runner.supervisor import engine_worker_command
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.protocol import (
    AdapterRef,
    AdaptersCached,
    AssignmentId,
    Forget,
    GpuJoined,
    GpuLost,
    Request,
    SamplingParams,
    StartRequest,
    StepReport,
    Warm,
)
from supervised import FakeScheduler, running
from waits import until


@pytest.fixture
def new_adapter(tiny_model: ModelConfig, tmp_path: Path) -> Callable[[int], AdapterRef]:
    """Called with a seed."""

    def new(seed: int) -> AdapterRef:
        write_random_adapter(tmp_path / str(seed), tiny_model, rank=8, seed=seed)
        return read_adapter(tmp_path / str(seed), tiny_model)

    return new


def worker(model: Path, data_folder: Path) -> list[str]:
    engine = EngineConfig(model=model, dtype="float32", page_size=4, num_kv_pages=256, num_lora_pages=8, cpu_threads=1)
    config = ClusterConfig(engine=engine, runner=RunnerConfig(devices=("cpu",)), data_folder=data_folder)
    return list(engine_worker_command(config, "host", 0))


def workers() -> list[int]:
    """The workers below this process: a dying one of an earlier test, and a child that one has just forked, too."""
    return [pid for pid in descendants(os.getpid()) if "punica_runner.worker " in command_line(pid)]


def kill_worker(others: list[int]) -> None:
    first, *_ = (pid for pid in workers() if pid not in others)
    os.kill(first, signal.SIGKILL)


def use(scheduler: FakeScheduler, *refs: AdapterRef) -> None:
    """Starts a request of one token for each."""
    uuid = scheduler.all(GpuJoined)[-1].gpu.uuid
    for seq, ref in enumerate(refs, 1):
        request = Request(f"r{seq}", seq, (5, 6), SamplingParams(max_tokens=1, ignore_eos=True), ref)
        scheduler.tell(StartRequest(uuid, seq, AssignmentId(1, seq), request))


def num_finished(scheduler: FakeScheduler) -> int:
    return sum(len(report.finished) for report in scheduler.all(StepReport))


def came(scheduler: FakeScheduler) -> list[str]:
    """Adapters that came to host memory, in order."""
    return [digest for change in scheduler.all(AdaptersCached) if change.gpu_uuid for digest in change.came]


def resident(scheduler: FakeScheduler) -> set[str]:
    known = [report.resident for report in scheduler.all(StepReport) if report.resident is not None]
    return set(known[-1]) if known else set()


async def test_a_restarted_worker_gets_its_adapters_back_most_used_first(
    scheduler: FakeScheduler,
    tiny_llama: Path,
    tmp_path: Path,
    new_adapter: Callable[[int], AdapterRef],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One at a time here, so that their order can be seen. Two are deleted: one before the death, and one after it."""
    monkeypatch.setattr(worker_tiers, "MAX_IN_FLIGHT", 1)
    others = workers()
    once, twice, thrice, hinted, deleted, deleted_later = map(new_adapter, range(6))
    async with running(scheduler, worker(tiny_llama, tmp_path)):
        await until(lambda: scheduler.all(GpuJoined))
        uses = (once, twice, thrice, *(4 * (deleted, deleted_later)), thrice, twice, thrice)
        use(scheduler, *uses)
        scheduler.tell(Warm(scheduler.all(GpuJoined)[0].gpu.uuid, hinted, host_only=True))
        await until(lambda: num_finished(scheduler) == len(uses) and len(came(scheduler)) == 6)
        assert hinted.digest not in resident(scheduler)
        scheduler.tell(Forget(deleted.digest))
        await until(lambda: any(deleted.digest in change.left for change in scheduler.all(AdaptersCached)))
        kill_worker(others)
        await until(lambda: scheduler.all(GpuLost))
        scheduler.tell(Forget(deleted_later.digest))
        scheduler.heard.clear()
        on_device = {once.digest, twice.digest, thrice.digest}
        await until(lambda: len(came(scheduler)) == 4 and resident(scheduler) == on_device)
        assert came(scheduler) == [ref.digest for ref in (thrice, twice, once, hinted)]
        assert num_finished(scheduler) == 0
