"""Ports that benchmarks and tests choose for processes that listen on them later."""

import errno
import socket
from pathlib import Path

import pytest

from punica_serve.bench import free_ports as module
from punica_serve.bench.free_ports import free_port, free_ports
from punica_serve.errors import ConfigError


def test_they_are_consecutive_and_can_be_listened_on() -> None:
    ports = free_ports(3)
    assert ports == list(range(ports[0], ports[0] + 3))
    for port in ports:
        socket.create_server(("", port)).close()


@pytest.mark.parametrize(
    ("ephemeral", "drawn"),
    [
        ("32768\t60999\n", range(10_000, 32_768)),
        ("1024\t60000\n", range(60_001, 65_536)),
        ("1024\t65535\n", range(10_000, 65_536)),
    ],
    ids=["below", "above", "neither"],
)
def test_they_lie_outside_the_kernels_own_range_if_that_leaves_enough(
    ephemeral: str, drawn: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(ephemeral)
    monkeypatch.setattr(module, "_RANGE_FILE", tmp_path / "range")
    assert all(free_port() in drawn for _ in range(50))


def test_taken_ports_are_drawn_again_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(address: tuple[str, int]) -> socket.socket:
        raise OSError(errno.EADDRINUSE, "taken")

    monkeypatch.setattr(socket, "create_server", taken)
    with pytest.raises(ConfigError, match="100 draws found no 2 free ports"):
        free_ports(2)


def test_a_process_that_may_not_listen_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: tuple[str, int]) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket, "create_server", refused)
    with pytest.raises(OSError, match="too many open files"):
        free_port()
