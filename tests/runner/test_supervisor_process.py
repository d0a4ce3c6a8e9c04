"""Supervisor processes that are killed or stopped."""

import asyncio
import signal
import sys
import textwrap
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from process_tree import is_alive
from punica_serve.protocol import GpuJoined, StepReport
from supervised import TOKEN, FakeScheduler, config, start
from waits import until

FakeWorker = Callable[..., list[str]]


def supervisor_script(folder: Path, scheduler: FakeScheduler, worker: list[str]) -> list[str]:
    """The command line of a process that is a supervisor of one worker."""
    script = folder / "run_supervisor.py"
    script.write_text(
        textwrap.dedent(f"""
            import asyncio
            from punica_runner import supervisor
            from punica_serve.config.cluster import ClusterConfig
            config = ClusterConfig.model_validate_json({config().model_dump_json()!r})
            asyncio.run(supervisor.serve(config, {TOKEN!r}, runner_id="host", scheduler_url={scheduler.url!r},
                                         worker_command=lambda index: {worker!r}))
            """)
    )
    return [sys.executable, "-P", str(script)]


@asynccontextmanager
async def busy_supervisor(scheduler: FakeScheduler, fake_worker: FakeWorker, folder: Path) -> AsyncIterator[Process]:
    """A supervisor process whose worker has reported a token. It is killed at the end."""
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
    scheduler: FakeScheduler, fake_worker: FakeWorker, tmp_path: Path
) -> None:
    async with busy_supervisor(scheduler, fake_worker, tmp_path):
        pass
    (pid,) = scheduler.pids()
    await until(lambda: not is_alive(pid))


async def test_a_supervisor_that_was_stopped_starts_over_with_its_worker_reset(
    scheduler: FakeScheduler, fake_worker: FakeWorker, tmp_path: Path
) -> None:
    async with busy_supervisor(scheduler, fake_worker, tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        await until(lambda: scheduler.num_ended == 1)
        scheduler.heard.clear()
        process.send_signal(signal.SIGCONT)
        await until(lambda: scheduler.all(StepReport))
    assert len(scheduler.hellos) == 2 and isinstance(scheduler.heard[0], GpuJoined)
    first = scheduler.all(StepReport)[0]
    assert first.epoch > 1 and first.applied_seq == 0 and not first.assignments
