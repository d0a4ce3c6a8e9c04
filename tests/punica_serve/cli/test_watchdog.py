import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from punica_serve.cli.watchdog import Watchdog, watchdog
from punica_serve.process import readiness
from waits import DEADLINE_S, until

LISTEN = """
import asyncio
from punica_serve.cli.watchdog import watchdog

async def listen():
    with watchdog(10):
        print("listening", flush=True)
        await asyncio.sleep(60)

asyncio.run(listen())
"""


def notifies(heard: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(readiness.SOCKET_ENV, heard.environment[readiness.SOCKET_ENV])
    readiness.notify(readiness.WATCHDOG)


async def test_notifications_are_heard_at_an_abstract_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with watchdog(10) as heard, watchdog(10) as other:
        assert heard.environment[readiness.SOCKET_ENV].startswith("@")
        for _ in range(3):
            notifies(heard, monkeypatch)
        await until(lambda: heard._num_signs == 3)
        assert other._num_signs == 0


async def test_another_users_notifications_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    with watchdog(10) as heard:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: os.geteuid() + 1)
            notifies(heard, monkeypatch)
            heard.hear()
        assert heard._num_signs == 0
        notifies(heard, monkeypatch)
        heard.hear()
        assert heard._num_signs == 1


def test_a_killed_listener_leaves_no_files(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as listener:
        try:
            assert listener.stdout is not None and listener.stdout.readline() == b"listening\n"
        finally:
            listener.kill()
        assert listener.wait(DEADLINE_S) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
