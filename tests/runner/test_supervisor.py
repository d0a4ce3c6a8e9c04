import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable

import pytest

from process_tree import is_alive
from punica_runner import supervisor
from punica_serve.errors import ConfigError
from punica_serve.process.logs import LogFormat
from punica_serve.protocol import GpuJoined, RunnerHello, StepReport
from supervised import FakeScheduler, config, running, start
from waits import DEADLINE_S, until

FakeWorker = Callable[..., list[str]]


async def test_every_device_joins_and_gets_its_own_commands(scheduler: FakeScheduler, fake_worker: FakeWorker) -> None:
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(start(1, "CPU-b"), start(1, "CPU-unknown"), start(1, "CPU-a"), start(2, "CPU-b"))
        await until(lambda: len(scheduler.pids()) == 3)
    assert [hello.runner_id for hello in scheduler.hellos if isinstance(hello, RunnerHello)] == ["host"]
    assert {joined.gpu.uuid for joined in scheduler.all(GpuJoined)} == {"CPU-a", "CPU-b"}
    by_gpu = [(report.gpu_uuid, report.applied_seq) for report in scheduler.all(StepReport) if report.token_ids]
    assert sorted(by_gpu) == [("CPU-a", 1), ("CPU-b", 1), ("CPU-b", 2)]


async def test_cancelling_leaves_no_process(scheduler: FakeScheduler, fake_worker: FakeWorker) -> None:
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")) as task:
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(start(1, "CPU-a"), start(1, "CPU-b"))
        await until(lambda: len(scheduler.pids()) == 2)
        assert all(map(is_alive, scheduler.pids()))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert not any(map(is_alive, scheduler.pids()))


async def test_workers_that_ignore_sigterm_don_t_hold_up_the_end(
    scheduler: FakeScheduler, fake_worker: FakeWorker
) -> None:
    deaf = [fake_worker(uuid, "deaf") for uuid in ("CPU-a", "CPU-b")]
    async with running(scheduler, *deaf, stop_timeout_s=0.5) as task:
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        task.cancel()
        await asyncio.wait([task])


async def test_a_lost_link_resets_the_workers_and_joins_them_again(
    scheduler: FakeScheduler, fake_worker: FakeWorker
) -> None:
    async with running(scheduler, fake_worker("CPU-a")):
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(start(1), start(2))
        await until(lambda: len(scheduler.pids()) == 2)
        first_epoch = scheduler.all(StepReport)[-1].epoch
        scheduler.heard.clear()
        assert scheduler.channel is not None
        await scheduler.channel.close("restarting")
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(start(1))
        await until(scheduler.pids)
        reports = scheduler.all(StepReport)
    assert isinstance(scheduler.heard[0], GpuJoined)
    assert len({report.epoch for report in reports}) == 1 and reports[0].epoch > first_epoch
    assert [report.applied_seq for report in reports] == [0, 1]


async def test_reports_of_an_old_epoch_never_reach_the_scheduler(
    scheduler: FakeScheduler, fake_worker: FakeWorker
) -> None:
    async with running(scheduler, fake_worker("CPU-a", "stale"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        assert scheduler.channel is not None
        await scheduler.channel.close("so that all are reset")
        await until(lambda: len(scheduler.all(GpuJoined)) == 4)
        scheduler.tell(start(1, "CPU-a"), start(1, "CPU-b"))
        await until(scheduler.pids)
    assert {report.gpu_uuid for report in scheduler.all(StepReport) if report.epoch} == {"CPU-b"}
    assert not [report for report in scheduler.all(StepReport) if report.gpu_uuid == "CPU-a" and report.token_ids]


def test_workers_log_as_their_supervisor_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, supervisor.__name__)
    command = supervisor.engine_worker_command(config().with_log_format(LogFormat.JSON), "host", 0)
    assert command[command.index("--log-level") + 1] == "debug"
    assert command[command.index("--log-format") + 1] == "json"


async def test_a_device_named_twice_is_a_config_error(scheduler: FakeScheduler, fake_worker: FakeWorker) -> None:
    async with asyncio.timeout(DEADLINE_S), running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-a")) as task:
        await asyncio.wait([task])
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=r"can't run: .+ has its GPU \(CPU-a\) already")):
        task.result()


def test_importing_the_supervisor_never_imports_torch() -> None:
    code = "import sys, punica_runner.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
