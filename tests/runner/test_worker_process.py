import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from process_tree import is_alive
from punica_runner import worker_process
from punica_runner.worker_process import WorkerDied, WorkerProcess, run_worker
from punica_runner.worker_tiers import WorkerTiers
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.protocol import AssignmentId, Request, SamplingParams, StartRequest, StepReport
from waits import DEADLINE_S, until

FakeWorker = Callable[..., list[str]]


def start(seq: int, request_id: str = "r") -> StartRequest:
    return StartRequest("CPU-a", seq, AssignmentId(1, seq), Request(request_id, 0, (1, 2), SamplingParams()))


def run(command: list[str], **limits: float) -> AbstractAsyncContextManager[WorkerProcess]:
    defaults = {"ready_timeout_s": 60.0, "stop_timeout_s": 5.0}
    return run_worker(command, RunnerConfig(**{**defaults, **limits}), WorkerTiers())


async def next_report(worker: WorkerProcess) -> StepReport:
    async with asyncio.timeout(DEADLINE_S):
        report = await worker.receive()
    assert isinstance(report, StepReport)
    return report


async def pid_of(worker: WorkerProcess) -> int:
    """A fake worker's tokens are its process id."""
    worker.send(start(1))
    return (await next_report(worker)).token_ids[0]


async def test_a_ready_worker_reports_what_its_commands_do(fake_worker: FakeWorker) -> None:
    async with run(fake_worker("CPU-x")) as worker:
        assert worker.gpu.uuid == "CPU-x"
        worker.send(start(1))
        report = await next_report(worker)
        assert (report.gpu_uuid, report.applied_seq, report.assignments) == ("CPU-x", 1, (1,))


async def test_the_end_of_the_context_stops_the_process(fake_worker: FakeWorker) -> None:
    async with run(fake_worker()) as worker:
        pid = await pid_of(worker)
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_a_worker_that_ignores_sigterm_is_killed_in_time(
    fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with run(fake_worker(behaviour="deaf"), stop_timeout_s=0.3):
        left_at = time.monotonic()
    assert time.monotonic() - left_at > 0.2
    assert "did not stop within 0.3 s and is killed" in caplog.text


async def test_cancelling_the_wait_for_a_stop_kills_at_once(fake_worker: FakeWorker) -> None:
    entered = asyncio.Event()

    async def live() -> None:
        async with run(fake_worker(behaviour="deaf"), stop_timeout_s=600):
            entered.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(DEADLINE_S):
        task = asyncio.create_task(live())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("hang", "it was not ready within 0.5 s"),
        ("die", "killed by SIGKILL"),
    ],
)
async def test_a_worker_that_does_not_get_ready(fake_worker: FakeWorker, behaviour: str, reason: str) -> None:
    ready_timeout_s = 0.5 if behaviour == "hang" else 60.0
    with pytest.raises(WorkerDied, match=f"^{reason}$"):
        async with run(fake_worker(behaviour=behaviour), ready_timeout_s=ready_timeout_s):
            pass


async def test_a_child_that_holds_on_to_a_dead_workers_pipe_hides_nothing(
    fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "EXIT_GRACE_S", 0.2)
    with pytest.raises(WorkerDied, match=r"^exit code 4$"):
        async with run(fake_worker(behaviour="grandchild")):
            pass


async def test_a_permanent_failure_is_reported_in_the_workers_words(fake_worker: FakeWorker) -> None:
    with pytest.raises(WorkerDied, match=r"no config\.json in /models/none") as death:
        async with run(fake_worker(behaviour="permanent")):
            pass
    assert death.value.is_permanent


async def test_a_worker_that_is_stopped_is_given_up_and_killed(fake_worker: FakeWorker) -> None:
    with pytest.raises(WorkerDied, match=r"^it has answered no ping for 2 s$"):
        async with run(fake_worker(), silence_timeout_s=2.0) as worker:
            pid = await pid_of(worker)
            os.kill(pid, signal.SIGSTOP)
            await next_report(worker)
    assert not is_alive(pid)


async def test_a_worker_that_answers_nothing_is_given_up(fake_worker: FakeWorker) -> None:
    with pytest.raises(WorkerDied, match="answered no ping"):
        async with run(fake_worker(behaviour="mute"), silence_timeout_s=0.4) as worker:
            await next_report(worker)


async def test_a_worker_that_answers_but_makes_no_step_is_given_up(fake_worker: FakeWorker) -> None:
    with pytest.raises(WorkerDied, match=r"^it has made no step for 0\.5 s, though a request could run$"):
        async with run(fake_worker(behaviour="stuck"), silence_timeout_s=4.0, step_timeout_s=0.5) as worker:
            pid = await pid_of(worker)
            await next_report(worker)
    assert not is_alive(pid)


async def test_a_worker_with_nothing_to_do_lives_on(fake_worker: FakeWorker) -> None:
    async with run(fake_worker(), silence_timeout_s=4.0, step_timeout_s=0.5) as worker:
        receiving = asyncio.create_task(worker.receive())
        # After two without a turn it would be killed.
        await until(lambda: worker._watchdog._newest.number >= 3, "three pings are answered")
        assert not receiving.done()
        worker.send(start(1))
        report = await receiving
        assert isinstance(report, StepReport) and report.applied_seq == 1


@pytest.mark.parametrize(
    ("behaviour", "request_id", "reason"),
    [
        ("serve", "exit", "exit code 3"),
        ("serve", "fail", "RuntimeError: a bad step"),
        ("garbage", "r", "it sent an invalid message: .*"),
    ],
)
async def test_a_death_is_explained(fake_worker: FakeWorker, behaviour: str, request_id: str, reason: str) -> None:
    async with run(fake_worker(behaviour=behaviour)) as worker:
        worker.send(start(1, request_id))
        with pytest.raises(WorkerDied, match=f"^{reason}$"):
            await next_report(worker)


async def test_a_command_that_can_not_run_raises_and_leaves_nothing_behind() -> None:
    with pytest.raises(FileNotFoundError):
        async with run(["/no/such/program"]):
            pass


async def test_reports_of_an_earlier_epoch_are_dropped(fake_worker: FakeWorker) -> None:
    async with run(fake_worker()) as worker:
        worker.send(start(1))
        worker.reset()
        report = await next_report(worker)
        assert (report.epoch, report.token_ids) == (1, ())


async def test_a_command_to_the_previous_life_is_dropped(fake_worker: FakeWorker) -> None:
    async with run(fake_worker()) as worker:
        for seq in (57, 58, 1, 2):
            worker.send(start(seq))
        assert [(await next_report(worker)).applied_seq for _ in range(2)] == [1, 2]
        worker.reset()
        worker.send(start(3))
        worker.send(start(1))
        assert [(await next_report(worker)).applied_seq for _ in range(2)] == [0, 1]
