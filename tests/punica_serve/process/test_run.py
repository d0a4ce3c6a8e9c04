"""Signals, exit codes and file descriptors: each test runs a process of its own."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from punica_serve.errors import ConfigError
from punica_serve.process import run
from waits import DEADLINE_S

PRELUDE = """
import asyncio, logging, os, sys, time
from punica_serve.process import run
from punica_serve.errors import ConfigError

async def until_cancelled():
    print("running", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)
"""

Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def started(code: str, *, wait_for: str = "running", **options: object) -> Iterator[subprocess.Popen[str]]:
    """Starts a Python process and waits until it has printed a line."""
    child = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-c", PRELUDE + code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    with child:
        try:
            assert child.stdout.readline().strip() == wait_for
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_the_coroutine_and_lets_it_clean_up(signum: signal.Signals) -> None:
    with started("run.run_process('test', until_cancelled()); print('returned')") as child:
        child.send_signal(signum)
        stdout, stderr = child.communicate(timeout=DEADLINE_S)
    assert (stdout, stderr, child.returncode) == ("cleaned up\nreturned\n", "", 0)


@pytest.mark.parametrize(("without", "loop"), [("", "uvloop"), ("sys.modules['uvloop'] = None", "asyncio.unix_events")])
def test_the_event_loop_is_uvloop_where_it_is_installed(without: str, loop: str) -> None:
    code = f"""
async def say():
    print(type(asyncio.get_running_loop()).__module__)
{without}
run.run_process('test', say())
"""
    with started(code, wait_for=loop) as child:
        assert child.communicate(timeout=DEADLINE_S) == ("", "")


def test_a_signal_is_obeyed_where_no_thread_can_be_had_for_the_deadline() -> None:
    code = """
import threading
def refuse(_):
    raise RuntimeError("can't start new thread")
threading.Timer.start = refuse
run.run_process("test", until_cancelled())
"""
    with started(code) as child:
        child.send_signal(signal.SIGTERM)
        stdout, _ = child.communicate(timeout=DEADLINE_S)
    assert (stdout, child.returncode) == ("cleaned up\n", 0)


def test_a_coroutine_that_does_not_stop_in_time_is_ended() -> None:
    code = """
async def stubborn():
    try:
        await until_cancelled()
    finally:
        time.sleep(60)
run.run_process("test", stubborn(), stop_timeout_s=0.1)
"""
    with started(code) as child:
        child.terminate()
        _, stderr = child.communicate(timeout=DEADLINE_S)
    assert child.returncode == 1
    assert "test ERROR did not stop within 0.1 s" in stderr


DRAINING = """
drain = run.Drain(timeout_s={timeout_s})
async def serve():
    print("running", flush=True)
    await drain.wanted()
    print("draining", flush=True)
    {then}
    print("drained", flush=True)
run.run_process("test", serve(), stop_timeout_s=60, drain=drain)
"""


def test_sigterm_lets_a_process_drain() -> None:
    with started(DRAINING.format(timeout_s=60, then="await asyncio.sleep(0.05)")) as child:
        child.terminate()
        stdout, stderr = child.communicate(timeout=DEADLINE_S)
    assert (stdout, stderr, child.returncode) == ("draining\ndrained\n", "", 0)


def test_sigint_does_not() -> None:
    with started(DRAINING.format(timeout_s=60, then="pass")) as child:
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=DEADLINE_S)
    assert (stdout, stderr, child.returncode) == ("", "", 0)


def test_a_drain_has_an_end() -> None:
    with started(DRAINING.format(timeout_s=0.1, then="await asyncio.Event().wait()")) as child:
        child.terminate()
        stdout, stderr = child.communicate(timeout=DEADLINE_S)
    assert (stdout, stderr, child.returncode) == ("draining\n", "", 0)


def test_a_second_signal_ends_a_drain_at_once() -> None:
    with started(DRAINING.format(timeout_s=60, then="await asyncio.Event().wait()")) as child:
        child.terminate()
        assert child.stdout is not None
        assert child.stdout.readline() == "draining\n"
        child.terminate()
        assert child.wait(DEADLINE_S) == 1


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = """
async def slow():
    try:
        await until_cancelled()
    finally:
        await asyncio.sleep(60)
run.run_process("test", slow(), stop_timeout_s=60)
"""
    with started(code) as child:
        child.terminate()
        assert child.stdout is not None
        assert child.stdout.readline() == "cleaned up\n"
        child.terminate()
        assert child.wait(DEADLINE_S) == 1


@pytest.mark.parametrize(
    ("body", "reaction"),
    [
        ("run.run_process('test', until_cancelled())", "cleaned up\n"),
        ("async def stuck(): print('running', flush=True); time.sleep(60)\n"
         "run.run_process('test', stuck(), stop_timeout_s=0.1)", ""),
    ],
    ids=["the coroutine is cancelled", "a stuck event loop is ended"],
)  # fmt: skip
def test_a_process_stops_when_the_other_end_of_its_lifeline_closes(body: str, reaction: str) -> None:
    read_end, write_end = os.pipe()
    environment = {**os.environ, run.LIFELINE_ENV: str(read_end)}
    with started(body, env=environment, pass_fds=(read_end,)) as child:
        os.close(read_end)
        os.close(write_end)
        stdout, _ = child.communicate(timeout=DEADLINE_S)
    assert stdout == reaction


def test_grandchildren_do_not_see_the_lifeline(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    code = """
async def serve():
    print(run.LIFELINE_ENV in os.environ, flush=True)
run.run_process("test", serve())
"""
    environment = {**os.environ, run.LIFELINE_ENV: str(read_end)}
    with started(code, wait_for="False", env=environment, pass_fds=(read_end,)) as child:
        child.wait(DEADLINE_S)
    os.close(read_end)
    os.close(write_end)


def test_log_lines_name_the_process_and_the_level() -> None:
    code = """
async def serve():
    logging.getLogger("anything").info("hidden")
    logging.getLogger("anything").warning("shown")
    print("running", flush=True)
run.run_process("runner", serve(), log_level=run.LogLevel.WARNING)
"""
    with started(code) as child:
        _, stderr = child.communicate(timeout=DEADLINE_S)
    assert stderr.endswith(" runner WARNING shown\n")
    assert "hidden" not in stderr


def test_a_mistake_deep_in_task_groups_is_raised_alone() -> None:
    async def mistaken() -> None:
        raise BaseExceptionGroup("outer", [ExceptionGroup("inner", [ConfigError("wrong port")])])

    with pytest.raises(ConfigError, match="wrong port"):
        run.run_process("test", mistaken())


def test_a_bug_beside_a_mistake_is_not_hidden() -> None:
    async def buggy() -> None:
        raise ExceptionGroup("both", [ConfigError("wrong port"), ValueError("bug")])

    with pytest.raises(ExceptionGroup) as raised:
        run.run_process("test", buggy())
    assert raised.group_contains(ValueError, match="bug")


def test_a_missing_token_is_refused_with_a_fresh_one_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(run.TOKEN_ENV, raising=False)
    with pytest.raises(ConfigError, match=rf"export {run.TOKEN_ENV}=[0-9a-f]{{32}}$"):
        run.cluster_token()


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run.TOKEN_ENV, "secret")
    assert run.cluster_token() == "secret"


def test_the_token_may_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(run.TOKEN_ENV, raising=False)
    monkeypatch.setenv(run.TOKEN_FILE_ENV, str(tmp_path / "token"))
    with pytest.raises(ConfigError, match=rf"{run.TOKEN_FILE_ENV}: .*/token can't be read: No such file"):
        run.cluster_token()
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match=r"/token is empty"):
        run.cluster_token()
    (tmp_path / "token").write_text("secret\n")
    assert run.cluster_token() == "secret"


def test_a_missing_package_of_an_extra_is_asked_for_by_that_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    modules_of: dict[str, list[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules_of.setdefault(distribution.lower(), []).append(module)
    wrong, num_looked_at = [], 0
    for extra, requirements in project["optional-dependencies"].items():
        for name in (re.split(r"[^\w-]", requirement)[0] for requirement in requirements if extra != "dev"):
            modules = modules_of.get(name.lower(), []) if name != "punica-serve" else []
            num_looked_at += bool(modules)
            if modules and extra not in {run.EXTRA_OF_MODULE.get(module) for module in modules}:
                wrong.append((extra, name))
    assert num_looked_at and not wrong
