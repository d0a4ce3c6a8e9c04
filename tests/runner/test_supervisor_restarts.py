"""Workers that die, hang or can't start, and when they are restarted."""

import asyncio
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from backoff_spy import note_lives
from punica_runner import supervisor
from punica_serve.config.cluster import parse_config
from punica_serve.errors import ConfigError
from punica_serve.protocol import GpuJoined, GpuLost, StepReport
from supervised import FakeScheduler, running, start
from waits import DEADLINE_S, until

FakeWorker = Callable[..., list[str]]


@pytest.mark.parametrize(("request_id", "reason"), [("exit", "exit code 3"), ("fail", "RuntimeError: a bad step")])
async def test_a_worker_that_dies_is_lost_and_restarted_alone(
    scheduler: FakeScheduler, fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture, request_id: str, reason: str
) -> None:
    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b")):
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)
        scheduler.tell(start(1, "CPU-a"), start(1, "CPU-b"), start(2, "CPU-a", request_id))
        await until(lambda: len(scheduler.all(GpuJoined)) == 3)
        scheduler.tell(start(1, "CPU-a"), start(2, "CPU-b"))
        await until(lambda: len(scheduler.pids()) == 4)
    assert scheduler.all(GpuLost) == [GpuLost("CPU-a", reason)]
    warnings = [record.getMessage() for record in caplog.records if "worker" in record.getMessage()]
    assert len(warnings) == 2 and warnings[1] == "worker 0 (cpu) is ready as GPU CPU-a (CPU-a)"
    order = [type(message) for message in scheduler.heard if getattr(message, "gpu_uuid", "CPU-a") == "CPU-a"]
    assert order.index(GpuLost) < len(order) - 1 - order[::-1].index(GpuJoined)
    pids: dict[str, list[int]] = {"CPU-a": [], "CPU-b": []}
    for report in scheduler.all(StepReport):
        pids[report.gpu_uuid] += report.token_ids
    assert len(set(pids["CPU-a"])) == 2 and len(set(pids["CPU-b"])) == 1


async def test_a_worker_that_never_gets_ready_is_restarted_with_growing_waits(
    scheduler: FakeScheduler, fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def deaths() -> list[str]:
        return [record.getMessage() for record in caplog.records if "died" in record.getMessage()]

    async with running(scheduler, fake_worker("CPU-a"), fake_worker("CPU-b", "die")):
        await until(lambda: len(deaths()) >= 4)
        scheduler.tell(start(1, "CPU-a"))
        await until(scheduler.pids)
    assert deaths()[0].startswith("worker 1 (cpu) died: killed by SIGKILL; restarting it in 0.")
    assert [joined.gpu.uuid for joined in scheduler.all(GpuJoined)] == ["CPU-a"]
    assert not scheduler.all(GpuLost)


async def test_a_worker_that_hangs_before_it_is_ready_is_restarted(
    scheduler: FakeScheduler, fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(scheduler, fake_worker("CPU-a", "hang"), ready_timeout_s=0.2):
        await until(lambda: caplog.text.count("it was not ready within 0.2 s; restarting it") >= 2)


async def test_a_permanent_failure_ends_the_runner_with_the_workers_words(
    scheduler: FakeScheduler, fake_worker: FakeWorker
) -> None:
    async with asyncio.timeout(DEADLINE_S), running(scheduler, fake_worker("", "permanent")) as task:
        await asyncio.wait([task])
    words = r"worker 0 \(cpu\) can't run: no config\.json in /models/none"
    with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=words)):
        task.result()


async def test_a_permanent_failure_after_one_has_been_ready_is_tried_again(
    scheduler: FakeScheduler, fake_worker: FakeWorker, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The model's folder is missing for a while, as when it is replaced."""
    flag = tmp_path / "replaced"
    behaviour = f'"$([ -e {flag} ] && echo permanent || echo serve)"'
    command = [*map(shlex.quote, fake_worker("CPU-a")[:-1]), behaviour]
    async with running(scheduler, ["sh", "-c", f'exec {" ".join(command)} "$@"', "sh"]):
        await until(lambda: scheduler.all(GpuJoined))
        flag.touch()
        scheduler.tell(start(1, request_id="exit"))
        await until(lambda: caplog.text.count("died: no config.json in /models/none; restarting it") >= 2)
        flag.unlink()
        await until(lambda: len(scheduler.all(GpuJoined)) == 2)


async def test_waits_grow_for_a_worker_that_takes_long_to_fail(
    scheduler: FakeScheduler, fake_worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = note_lives(monkeypatch)
    async with running(scheduler, fake_worker("CPU-a", "hang"), ready_timeout_s=0.2):
        await until(lambda: len(lives) >= 2)
    assert set(lives) == {0.0}


@pytest.mark.parametrize("key", ["restart_backoff_s", "restart_backoff_max_s"])
def test_a_config_that_sets_the_backoff_is_refused_with_the_constants(key: str) -> None:
    """The config's message names the supervisor's constants."""
    first, highest = supervisor.RESTART_BACKOFF_S, supervisor.RESTART_BACKOFF_MAX_S
    message = rf"`runner\.{key}`: is not a setting: .* after {first:g} s, .* up to {highest:g} s; remove this line"
    with pytest.raises(ConfigError, match=message):
        parse_config({"engine": {"model": "m"}, "runner": {key: 1.0}}, source="cluster.yaml", folder=Path())
