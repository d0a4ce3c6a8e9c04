import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from process_tree import is_alive
from punica_serve.cli import children, watchdog
from punica_serve.cli.children import Child
from punica_serve.errors import ConfigError
from punica_serve.process.lifeline import lifeline
from waits import DEADLINE_S, until


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "RESTART_FIRST_S", 0.01)


@pytest.fixture
def lifeline_fd() -> Iterator[int]:
    with lifeline() as fd:
        yield fd


@asynccontextmanager
async def kept_running(*codes: str, lifeline_fd: int, **environment: str) -> AsyncIterator[None]:
    testers = [Child("tester", [sys.executable, "-c", code], lifeline_fd, environment) for code in codes]
    async with asyncio.timeout(DEADLINE_S), children.kept_running(testers):
        yield


async def lines(path: Path, count: int) -> list[str]:
    """The file's lines, once it has so many."""

    def read() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    await until(lambda: len(read()) >= count)
    return read()


NOTE_PID_AND_WAIT = """
import os, signal, time
with open(os.environ["NOTES"], "a") as notes:
    print(os.getpid(), file=notes)
time.sleep(60)
"""


def test_what_a_process_is_started_with_in_secret_is_not_shown() -> None:
    assert "hunter2" not in repr(Child("tester", ["true"], 0, {"TOKEN": "hunter2"}))


async def test_a_process_is_stopped_at_the_end(lifeline_fd: int, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with kept_running(NOTE_PID_AND_WAIT, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        (pid,) = await lines(notes, 1)
        assert is_alive(int(pid))
    assert not is_alive(int(pid))


async def test_several_are_stopped_at_once(lifeline_fd: int, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with kept_running(NOTE_PID_AND_WAIT, NOTE_PID_AND_WAIT, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        pids = await lines(notes, 2)
    assert not any(is_alive(int(pid)) for pid in pids)


async def test_a_dead_process_is_started_again(
    lifeline_fd: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes"
    async with kept_running(NOTE_PID_AND_WAIT, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        (first,) = await lines(notes, 1)
        os.kill(int(first), signal.SIGKILL)
        _, second = await lines(notes, 2)
        assert second != first
    assert "the tester died: killed by SIGKILL; restarting it in" in caplog.text


async def test_one_that_has_ended_in_order_is_started_again_and_did_not_die(
    lifeline_fd: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes = tmp_path / "notes"
    code = "import os; print('here', file=open(os.environ['NOTES'], 'a'))"
    async with kept_running(code, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        await lines(notes, 2)
    assert "the tester ended normally; restarting it in" in caplog.text
    assert "died" not in caplog.text


async def test_a_users_mistake_ends_everything(lifeline_fd: int) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        async with kept_running("import sys; sys.exit(2)", lifeline_fd=lifeline_fd):
            await asyncio.Event().wait()
    assert raised.group_contains(ConfigError, match="the tester can't run")


async def test_a_process_that_ignores_the_signal_is_killed(
    lifeline_fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "KILL_TIMEOUT_S", 0.1)
    notes = tmp_path / "notes"
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{NOTE_PID_AND_WAIT}"
    async with kept_running(code, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        (pid,) = await lines(notes, 1)
    assert not is_alive(int(pid))


# The tests' parent may ignore SIGINT, as a shell does for background jobs, and children inherit that.
GIVE_SIGNS_OF_LIFE = """
import asyncio, os, signal
from punica_serve.process import readiness
signal.signal(signal.SIGINT, signal.default_int_handler)
async def live():
    signs = asyncio.create_task(readiness.keep_alive())
    await asyncio.sleep(0.1)
    with open(os.environ["NOTES"], "a") as notes:
        print(os.getpid(), file=notes)
    await signs
asyncio.run(live())
"""


async def test_a_process_that_is_still_starting_is_stopped_without_a_traceback(
    lifeline_fd: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    code = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{NOTE_PID_AND_WAIT}"
    async with kept_running(code, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        await lines(notes, 1)
    assert capfd.readouterr().err == ""


async def test_a_process_that_lives_is_stopped_by_sigint_for_it_would_drain_after_sigterm(
    lifeline_fd: int, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    code = f"""
import os, signal
def note(signum, frame):
    print(signal.Signals(signum).name, file=open(os.environ["NOTES"], "a"))
    raise SystemExit
signal.signal(signal.SIGTERM, note)
{GIVE_SIGNS_OF_LIFE.replace("signal.default_int_handler", "note")}"""
    async with kept_running(code, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        await lines(notes, 1)
    assert (await lines(notes, 2))[1] == "SIGINT"


async def test_a_frozen_process_is_killed_and_started_again(
    lifeline_fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(children, "WATCHDOG_TIMEOUT_S", 1.5)
    notes = tmp_path / "notes"
    async with kept_running(GIVE_SIGNS_OF_LIFE, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        (first,) = await lines(notes, 1)
        os.kill(int(first), signal.SIGSTOP)
        _, second = await lines(notes, 2)
        assert not is_alive(int(first)) and second != first
    assert "the tester is frozen and is killed" in caplog.text


async def test_a_process_that_is_frozen_before_its_first_sign_is_killed_too(
    lifeline_fd: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "START_TIMEOUT_S", 1.0)
    notes = tmp_path / "notes"
    async with kept_running(NOTE_PID_AND_WAIT, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        first, second = (await lines(notes, 2))[:2]
        assert second != first


async def test_what_a_dead_process_leaves_behind_is_killed(lifeline_fd: int, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    grandchild = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {NOTE_PID_AND_WAIT!r}])"
    code = f"{grandchild}\n{NOTE_PID_AND_WAIT}"
    async with kept_running(code, lifeline_fd=lifeline_fd, NOTES=str(notes)):
        pids = await lines(notes, 2)
    await until(lambda: not any(is_alive(int(pid)) for pid in pids))


async def test_a_process_inherits_only_the_reading_end_of_the_lifeline(lifeline_fd: int, tmp_path: Path) -> None:
    """So that it sees the end when this process closes, or loses, the writing end."""
    notes = tmp_path / "notes"
    code = (
        "import os; from punica_serve.process import run\n"
        "note = open(os.environ['NOTES'], 'a')\n"
        "print('waiting', file=note, flush=True)\n"
        "print(os.read(int(os.environ[run.LIFELINE_ENV]), 1), file=note, flush=True)"
    )
    with lifeline() as fd:
        waiting = kept_running(code, lifeline_fd=fd, NOTES=str(notes))
        await waiting.__aenter__()
        assert await lines(notes, 1) == ["waiting"]
    assert (await lines(notes, 2))[1] == "b''"
    await waiting.__aexit__(None, None, None)
