import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from punica_serve.process import readiness


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket, named in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv(readiness.SOCKET_ENV, str(tmp_path / "notify"))
        yield listener


def test_a_state_reaches_the_service_manager(manager: socket.socket) -> None:
    readiness.notify(readiness.READY)
    assert manager.recv(100) == b"READY=1"


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(readiness.SOCKET_ENV, raising=False)
    readiness.notify(readiness.READY)
    monkeypatch.setenv(readiness.SOCKET_ENV, str(tmp_path / "none"))
    readiness.notify(readiness.READY)


def test_a_manager_that_does_not_read_delays_nobody(manager: socket.socket) -> None:
    for _ in range(5_000):
        readiness.notify(readiness.WATCHDOG)


async def test_the_watchdog_is_notified_four_times_within_its_timeout(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(readiness.WATCHDOG_ENV, "2000000")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with contextlib.suppress(asyncio.CancelledError):
        await readiness.keep_alive()
    assert waits == [0.5, 0.5, 0.5]
    assert [manager.recv(100) for _ in waits] == [b"WATCHDOG=1"] * 3


async def test_without_a_watchdog_nothing_is_sent(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(readiness.WATCHDOG_ENV, raising=False)
    await readiness.keep_alive()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


async def test_the_alive_file_appears_when_the_process_is_ready_and_is_updated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "alive"
    monkeypatch.delenv(readiness.SOCKET_ENV, raising=False)
    monkeypatch.setenv(readiness.ALIVE_FILE_ENV, str(file))
    readiness.notify(readiness.WATCHDOG)
    assert not file.exists()
    readiness.notify(readiness.READY)
    os.utime(file, (0, 0))
    signs = asyncio.create_task(readiness.keep_alive())
    await asyncio.sleep(0)
    signs.cancel()
    assert file.stat().st_mtime > 0
    readiness.remove_stale_alive_file()
    assert not file.exists()


def test_an_alive_file_that_cannot_be_written_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(readiness.ALIVE_FILE_ENV, str(tmp_path / "none" / "alive"))
    readiness.notify(readiness.READY)
    readiness.notify(readiness.WATCHDOG)
    readiness.remove_stale_alive_file()
