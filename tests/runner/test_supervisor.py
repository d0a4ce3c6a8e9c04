import asyncio
import logging
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from punica_runner import supervisor, worker_process
from punica_serve import wire
from punica_serve.backoff import Backoff
from punica_serve.channel import Channel
from punica_serve.config import ClusterConfig, EngineConfig, LinksConfig, RunnerConfig
from punica_serve.errors import ConfigError
from punica_serve.process import Drain
from punica_serve.protocol import (
    AssignmentId,
    DrainRunner,
    GpuJoined,
    GpuLost,
    Request,
    RunnerDrained,
    RunnerHello,
    SamplingParams,
    StartRequest,
    StepReport,
    ToScheduler,
)

FakeWorker = Callable[..., list[str]]
IsAlive = Callable[[int], bool]
Until = Callable[..., Any]
TOKEN = "cluster token"
LINKS = LinksConfig(heartbeat_s=0.2, silence_s=3.0)
T = TypeVar("T")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "RECONNECT_FIRST_S", 0.02)
    monkeypatch.setattr(wire, "RECONNECT_HIGHEST_S", 0.05)
    monkeypatch.setattr(worker_process, "LAST_WORDS_S", 0.2)


class FakeScheduler:
    """Accepts one runner at a time, and keeps what it says and what it is to be told."""

    def __init__(self) -> None:
        self.url = ""
        self.hellos: list[Any] = []
        self.heard: list[Any] = []
        #: Links that have ended.
        self.num_ended = 0
        self.channel: Channel | None = None

    async def session(self, channel: Channel) -> None:
        self.hellos.append(await wire.accept(channel, token=TOKEN, incarnation=1))
        self.channel = channel
        async for message in channel:
            self.heard.append(message)
        self.num_ended += 1

    def tell(self, *messages: Any) -> None:
        assert self.channel is not None
        for message in messages:
            self.channel.send(message)

    def all(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]

    def pids(self) -> list[int]:
        """A fake worker's tokens are its process id."""
        return [token_id for report in self.all(StepReport) for token_id in report.token_ids]


@pytest.fixture
async def scheduler() -> AsyncIterator[FakeScheduler]:
    fake = FakeScheduler()
    async with wire.listen("127.0.0.1", 0, ToScheduler, fake.session, LINKS) as port:
        fake.url = f"ws://127.0.0.1:{port}"
        yield fake


def config(num_devices: int = 1, **settings: Any) -> ClusterConfig:
    defaults = {"ready_timeout_s": 10.0, "restart_backoff_s": 0.05, "restart_backoff_max_s": 0.2}
    runner = RunnerConfig(devices=("cpu",) * num_devices, **{**defaults, **settings})
    return ClusterConfig(engine=EngineConfig(model=Path("none")), runner=runner, links=LINKS)


@asynccontextmanager
async def running(
    scheduler: FakeScheduler, *commands: list[str], drain: Drain | None = None, **settings: Any
) -> AsyncIterator["asyncio.Task[None]"]:
    """A supervisor of one worker for each command line; cancelled at the end."""
    serve = supervisor.serve(
        config(len(commands), **settings),
        TOKEN,
        runner_id="host",
        scheduler_url=scheduler.url,
        worker_command=lambda index: commands[index],
        drain=drain,
    )
    task = asyncio.create_task(serve)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


def start(seq: int, gpu_uuid: str = "CPU-a", request_id: str = "r") -> StartRequest:
    return StartRequest(gpu_uuid, seq, AssignmentId(1, seq), Request(request_id, 0, (1,), SamplingParams()))


async def test_every_device_joins_and_gets_its_own_commands(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until
) -> None:
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(start(1, "CPU-b"), start(1, "CPU-unknown"), start(1, "CPU-a"), start(2, "CPU-b"))
        await until(lambda: len(scheduler.pids()) == 3)
    assert [hello.runner_id for hello in scheduler.hellos if isinstance(hello, RunnerHello)] == ["host"]
    assert {joined.gpu.uuid for joined in scheduler.all(GpuJoined)} == {"CPU-a", "CPU-b"}
    by_gpu = [(report.gpu_uuid, report.applied_seq) for report in scheduler.all(StepReport) if report.token_ids]
    assert sorted(by_gpu) == [("CPU-a", 1), ("CPU-b", 1), ("CPU-b", 2)]


async def test_cancelling_leaves_no_process(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, is_alive: IsAlive
) -> None:
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
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until
) -> None:
    deaf = [fake_worker(uuid, "deaf") for uuid in ("CPU-a", "CPU-b")]
    async with running(scheduler, *deaf, stop_timeout_s=0.5) as task:
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        cancelled_at = time.monotonic()
        task.cancel()
        await asyncio.wait([task])
    assert time.monotonic() - cancelled_at < 10.0


@pytest.mark.parametrize(("request_id", "reason"), [("exit", "exit code 3"), ("fail", "RuntimeError: a bad step")])
async def test_a_worker_that_dies_is_lost_and_comes_back_alone(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, request_id: str, reason: str
) -> None:
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(start(1, "CPU-a"), start(1, "CPU-b"), start(2, "CPU-a", request_id))
        await until(lambda: len(scheduler.all(GpuJoined)) == 3)
        scheduler.tell(start(1, "CPU-a"), start(2, "CPU-b"))
        await until(lambda: len(scheduler.pids()) == 4)
    assert scheduler.all(GpuLost) == [GpuLost("CPU-a", reason)]
    order = [type(message) for message in scheduler.heard if getattr(message, "gpu_uuid", "CPU-a") == "CPU-a"]
    assert order.index(GpuLost) < len(order) - 1 - order[::-1].index(GpuJoined)
    pids: dict[str, list[int]] = {"CPU-a": [], "CPU-b": []}
    for report in scheduler.all(StepReport):
        pids[report.gpu_uuid] += report.token_ids
    assert len(set(pids["CPU-a"])) == 2 and len(set(pids["CPU-b"])) == 1


async def test_a_worker_that_never_gets_ready_is_restarted_with_growing_waits(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    def deaths() -> list[str]:
        return [record.getMessage() for record in caplog.records if "died" in record.getMessage()]

    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b", "die")):
        await until(lambda: len(deaths()) >= 4)
        scheduler.tell(start(1, "CPU-a"))
        await until(scheduler.pids)
    assert deaths()[0].startswith("worker 1 (cpu) died: killed by SIGKILL; starting it again in 0.")
    assert [joined.gpu.uuid for joined in scheduler.all(GpuJoined)] == ["CPU-a"]
    assert not scheduler.all(GpuLost)


async def test_a_worker_that_hangs_before_it_is_ready_is_restarted(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(scheduler, fake_worker("CPU-a", "hang"), ready_timeout_s=0.2):
        await until(lambda: caplog.text.count("it was not ready within 0.2 s; starting it again") >= 2)


async def test_a_lost_link_resets_the_workers_and_joins_them_again(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until
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
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until
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


async def test_a_runner_that_drains_goes_on_until_the_scheduler_has_moved_everything(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, is_alive: IsAlive
) -> None:
    drain = Drain(60.0)
    async with running(scheduler, fake_worker("CPU-a"), drain=drain) as task:
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(start(1))
        await until(lambda: len(scheduler.pids()) == 1)
        drain.begin()
        await until(lambda: scheduler.all(DrainRunner))
        scheduler.tell(start(2))
        await until(lambda: len(scheduler.pids()) == 2)
        assert not task.done() and is_alive(scheduler.pids()[0])
        scheduler.tell(RunnerDrained())
        async with asyncio.timeout(10):
            await task
    assert not any(map(is_alive, scheduler.pids())) and len(scheduler.hellos) == 1


async def test_a_lost_link_is_the_end_of_a_drain(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until
) -> None:
    drain = Drain(60.0)
    async with running(scheduler, fake_worker("CPU-a"), drain=drain) as task:
        await until(lambda: scheduler.all(GpuJoined))
        drain.begin()
        await until(lambda: scheduler.all(DrainRunner))
        assert scheduler.channel is not None
        await scheduler.channel.close("gone")
        async with asyncio.timeout(10):
            await task


async def test_without_a_link_there_is_nothing_to_drain(fake_worker: FakeWorker) -> None:
    nobody = FakeScheduler()
    nobody.url = "ws://127.0.0.1:1"
    drain = Drain(60.0)
    async with running(nobody, fake_worker("CPU-a"), drain=drain) as task:
        drain.begin()
        async with asyncio.timeout(10):
            await task


async def test_a_worker_that_gets_ready_during_a_drain_does_not_join(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    drain = Drain(60.0)
    async with running(scheduler, fake_worker("CPU-a"), drain=drain):
        await until(lambda: scheduler.all(GpuJoined))
        drain.begin()
        await until(lambda: scheduler.all(DrainRunner))
        scheduler.tell(start(1, request_id="exit"))
        await until(lambda: caplog.text.count("worker 0 (cpu) is ready") == 2)
    assert scheduler.all(GpuLost) and len(scheduler.all(GpuJoined)) == 1


async def test_a_permanent_failure_ends_the_runner_with_the_workers_words(
    scheduler: FakeScheduler, fake_worker: FakeWorker
) -> None:
    async with asyncio.timeout(10), running(scheduler, fake_worker("", "permanent")) as task:
        await asyncio.wait([task])
    words = r"worker 0 \(cpu\) can't run: no config\.json in /models/none"
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=words)):
        task.result()


async def test_a_permanent_failure_after_one_has_been_ready_is_tried_again(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The model's folder is gone for a while, as when it is replaced."""
    flag = tmp_path / "replaced"
    behaviour = f'"$([ -e {flag} ] && echo permanent || echo serve)"'
    command = [*map(shlex.quote, fake_worker("CPU-a")[:-1]), behaviour]
    async with running(scheduler, ["sh", "-c", f'exec {" ".join(command)} "$@"', "sh"]):
        await until(lambda: scheduler.all(GpuJoined))
        flag.touch()
        scheduler.tell(start(1, request_id="exit"))
        await until(lambda: caplog.text.count("died: no config.json in /models/none; starting it again") >= 2)
        flag.unlink()
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)


async def test_waits_grow_for_a_worker_that_takes_long_to_fail(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives: list[float] = []
    after = Backoff.after

    def spy(self: Backoff, lived_s: float) -> float:
        lives.append(lived_s)
        return after(self, lived_s)

    monkeypatch.setattr(Backoff, "after", spy)
    async with running(scheduler, fake_worker("CPU-a", "hang"), ready_timeout_s=0.2):
        await until(lambda: len(lives) >= 2)
    assert set(lives) == {0.0}


def test_workers_log_as_their_supervisor_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, supervisor.__name__)
    command = supervisor.engine_worker_command(config(), "host", 0)
    assert command[command.index("--log-level") + 1] == "debug"


async def test_a_device_named_twice_is_a_config_error(scheduler: FakeScheduler, fake_worker: FakeWorker) -> None:
    async with asyncio.timeout(10), running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-a")) as task:
        await asyncio.wait([task])
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="another worker has GPU CPU-a already")):
        task.result()


def supervisor_script(folder: Path, scheduler: FakeScheduler, worker: list[str]) -> list[str]:
    """The command line of a process that is a supervisor of one worker."""
    script = folder / "run_supervisor.py"
    script.write_text(
        textwrap.dedent(f"""
            import asyncio
            from punica_runner import supervisor
            from punica_serve.config import ClusterConfig
            config = ClusterConfig.model_validate_json({config().model_dump_json()!r})
            asyncio.run(supervisor.serve(config, {TOKEN!r}, runner_id="host", scheduler_url={scheduler.url!r},
                                         worker_command=lambda index: {worker!r}))
            """)
    )
    return [sys.executable, "-P", str(script)]


@asynccontextmanager
async def busy_supervisor(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, folder: Path
) -> AsyncIterator[Process]:
    """A supervisor's process whose worker has said something of a request. It is killed on the way out."""
    process = await asyncio.create_subprocess_exec(*supervisor_script(folder, scheduler, fake_worker("CPU-a")))
    try:
        await until(lambda: scheduler.all(GpuJoined))
        scheduler.tell(start(1))
        await until(scheduler.pids)
        yield process
    finally:
        process.kill()
        await process.wait()


async def test_a_killed_supervisor_takes_its_workers_along(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, is_alive: IsAlive, tmp_path: Path
) -> None:
    async with busy_supervisor(scheduler, fake_worker, until, tmp_path):
        pass
    (pid,) = scheduler.pids()
    await until(lambda: not is_alive(pid), timeout_s=10.0)


async def test_a_supervisor_that_was_stopped_starts_over_with_its_worker_reset(
    scheduler: FakeScheduler, fake_worker: FakeWorker, until: Until, tmp_path: Path
) -> None:
    async with busy_supervisor(scheduler, fake_worker, until, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: scheduler.num_ended == 1, timeout_s=30)
        scheduler.heard.clear()
        process.send_signal(signal.SIGCONT)
        await until(lambda: scheduler.all(StepReport))
    assert len(scheduler.hellos) == 2 and isinstance(scheduler.heard[0], GpuJoined)
    first = scheduler.all(StepReport)[0]
    assert first.epoch > 1 and first.applied_seq == 0 and not first.counters


def test_importing_the_supervisor_never_imports_torch() -> None:
    code = "import sys, punica_runner.supervisor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0
