"""Runners that drain: the scheduler moves their requests before they stop."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from process_tree import is_alive
from punica_serve.process.run import Drain
from punica_serve.protocol import DrainRunner, GpuJoined, GpuLost, RunnerDrained
from supervised import FakeScheduler, running, start
from waits import DEADLINE_S, until

FakeWorker = Callable[..., list[str]]


async def test_a_runner_that_drains_goes_on_until_the_scheduler_has_moved_everything(
    scheduler: FakeScheduler, fake_worker: FakeWorker
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
        async with asyncio.timeout(DEADLINE_S):
            await task
    assert not any(map(is_alive, scheduler.pids())) and len(scheduler.hellos) == 1


async def test_a_lost_link_is_the_end_of_a_drain(scheduler: FakeScheduler, fake_worker: FakeWorker) -> None:
    drain = Drain(60.0)
    async with running(scheduler, fake_worker("CPU-a"), drain=drain) as task:
        await until(lambda: scheduler.all(GpuJoined))
        drain.begin()
        await until(lambda: scheduler.all(DrainRunner))
        assert scheduler.channel is not None
        await scheduler.channel.close("gone")
        async with asyncio.timeout(DEADLINE_S):
            await task


async def test_without_a_link_there_is_nothing_to_drain(fake_worker: FakeWorker) -> None:
    nobody = FakeScheduler()
    nobody.url = "ws://127.0.0.1:1"
    drain = Drain(60.0)
    async with running(nobody, fake_worker("CPU-a"), drain=drain) as task:
        drain.begin()
        async with asyncio.timeout(DEADLINE_S):
            await task


async def test_a_worker_that_gets_ready_during_a_drain_does_not_join(
    scheduler: FakeScheduler, fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture
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
