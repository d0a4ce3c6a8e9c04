import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from punica_serve import notify


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A service manager's socket, offered in the environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(10)
        monkeypatch.setenv(notify.SOCKET_ENV, str(tmp_path / "notify"))
        yield listener


def test_a_state_reaches_the_service_manager(manager: socket.socket) -> None:
    notify.notify(notify.READY)
    assert manager.recv(100) == b"READY=1"


def test_nothing_is_told_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(notify.SOCKET_ENV, raising=False)
    notify.notify(notify.READY)
    monkeypatch.setenv(notify.SOCKET_ENV, str(tmp_path / "none"))
    notify.notify(notify.READY)


def test_a_manager_that_reads_nothing_holds_nobody_up(manager: socket.socket) -> None:
    for _ in range(5_000):
        notify.notify(notify.WATCHDOG)


async def test_signs_of_life_come_four_times_as_often_as_they_must(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(notify.WATCHDOG_ENV, "2000000")
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with contextlib.suppress(asyncio.CancelledError):
        await notify.keep_alive()
    assert waits == [0.5, 0.5, 0.5]
    assert [manager.recv(100) for _ in waits] == [b"WATCHDOG=1"] * 3


async def test_without_a_watchdog_no_signs_are_given(manager: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(notify.WATCHDOG_ENV, raising=False)
    await notify.keep_alive()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


async def test_a_file_appears_when_the_process_is_ready_and_shows_its_newest_sign_of_life(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "alive"
    monkeypatch.delenv(notify.SOCKET_ENV, raising=False)
    monkeypatch.setenv(notify.ALIVE_FILE_ENV, str(file))
    notify.notify(notify.WATCHDOG)
    assert not file.exists()
    notify.notify(notify.READY)
    os.utime(file, (0, 0))
    signs = asyncio.create_task(notify.keep_alive())
    await asyncio.sleep(0)
    signs.cancel()
    assert file.stat().st_mtime > 0
    notify.forget_last_life()
    assert not file.exists()


def test_a_file_that_cannot_be_written_ends_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(notify.ALIVE_FILE_ENV, str(tmp_path / "none" / "alive"))
    notify.notify(notify.READY)
    notify.notify(notify.WATCHDOG)
    notify.forget_last_life()
