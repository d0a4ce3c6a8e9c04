"""The hook as a real command: a few lines of Python that note what they are told."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from punica_scheduler.scale_hook import ScaleHook
from punica_serve.process.run import TOKEN_ENV
from punica_serve.protocol import ScaleAdvice
from waits import DEADLINE_S, until

#: Notes its standard input, then waits while there is no file `go`.
NOTE_AND_WAIT = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with (folder / "notes").open("a") as notes:
    notes.write(sys.stdin.read())
while not (folder / "go").exists():
    time.sleep(0.01)
"""


@asynccontextmanager
async def hook(code: str, folder: Path, *, timeout_s: float = DEADLINE_S) -> AsyncIterator[ScaleHook]:
    hook = ScaleHook((sys.executable, "-c", code, str(folder)), timeout_s)
    async with asyncio.timeout(DEADLINE_S), hook.running():
        yield hook


def notes(folder: Path) -> list[Any]:
    path = folder / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_it_is_told_the_advice_as_json(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    async with hook(NOTE_AND_WAIT, tmp_path) as running:
        running.advise(ScaleAdvice(2, ("host-1",)))
        await until(lambda: notes(tmp_path))
    assert notes(tmp_path) == [{"num_more_gpus": 2, "releasable_runners": ["host-1"]}]


@pytest.mark.parametrize(
    ("advice", "says"),
    [
        (ScaleAdvice(), "as many GPUs as there are"),
        (ScaleAdvice(1), "1 more GPU"),
        (ScaleAdvice(2, ("a", "b")), "2 more GPUs; these runners may go: a, b"),
    ],
)
def test_the_log_says_it_in_words(advice: ScaleAdvice, says: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ScaleHook(None, DEADLINE_S).advise(advice)
    assert caplog.messages == [f"advice: {says}"]


async def test_of_what_is_advised_while_it_runs_only_the_newest_counts(tmp_path: Path) -> None:
    async with hook(NOTE_AND_WAIT, tmp_path) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: notes(tmp_path))
        for num_more_gpus in (2, 3, 4):
            running.advise(ScaleAdvice(num_more_gpus))
        (tmp_path / "go").touch()
        await until(lambda: len(notes(tmp_path)) == 2)
    assert [note["num_more_gpus"] for note in notes(tmp_path)] == [1, 4]


async def test_one_that_takes_too_long_is_killed_and_the_next_advice_is_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hook("import time; time.sleep(60)", tmp_path, timeout_s=0.1) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: len(caplog.messages) == 1)
        running.advise(ScaleAdvice(2))
        await until(lambda: len(caplog.messages) == 2)
    failure = f"the scale hook {sys.executable} failed: it has not ended within 0.1 s and is killed"
    assert caplog.messages == [failure] * 2


async def test_one_that_runs_as_another_user_is_waited_for_and_the_next_advice_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind `sudo`, say: the scheduler may not kill it."""
    refused: list[int] = []

    def refuse(pid: int, _signum: int) -> None:
        refused.append(pid)
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    async with hook(NOTE_AND_WAIT, tmp_path, timeout_s=1.0) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: refused)
        (tmp_path / "go").touch()
        running.advise(ScaleAdvice(2))
        await until(lambda: len(notes(tmp_path)) == 2)


async def test_a_failure_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with hook("import sys; sys.exit(3)", tmp_path) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: caplog.messages)
    assert caplog.messages == [f"the scale hook {sys.executable} failed: exit code 3"]


async def test_a_command_that_is_not_there_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    missing = ScaleHook(("/nowhere/hook",), DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S), missing.running():
        missing.advise(ScaleAdvice(1))
        await until(lambda: caplog.messages)
    assert caplog.messages == ["the scale hook /nowhere/hook failed: it can't be started: No such file or directory"]


async def test_it_ends_with_the_scheduler(tmp_path: Path) -> None:
    code = "import os, sys, time\nopen(sys.argv[1] + '/notes', 'w').write(str(os.getpid()))\ntime.sleep(60)"
    async with hook(code, tmp_path) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: notes(tmp_path))
    with pytest.raises(ProcessLookupError):
        os.kill(notes(tmp_path)[0], 0)


async def test_it_does_not_see_the_clusters_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    code = f"import os, sys; open(sys.argv[1] + '/notes', 'w').write(str(int({TOKEN_ENV!r} in os.environ)))"
    async with hook(code, tmp_path) as running:
        running.advise(ScaleAdvice(1))
        await until(lambda: notes(tmp_path))
    assert notes(tmp_path) == [0]


async def test_without_a_command_advice_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    silent = ScaleHook(None, DEADLINE_S)
    async with silent.running():
        silent.advise(ScaleAdvice(1))
    assert "advice: 1 more GPU" in caplog.text
