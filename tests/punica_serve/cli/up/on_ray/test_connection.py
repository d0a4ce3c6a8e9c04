from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]


def test_an_address_where_nobody_listens(
    cli: Cli, write_config: Callable[..., Path], unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{unused_port}")
    exit_code, stdout, stderr = cli("up", "--ray", "--config", str(write_config()))
    assert (exit_code, stdout) == (2, "")
    assert f"can't connect to Ray at RAY_ADDRESS=127.0.0.1:{unused_port}: Connection refused" in stderr
    assert stderr.count("\n") == 1


def test_runners_are_not_for_ray(cli: Cli, write_config: Callable[..., Path]) -> None:
    exit_code, _, stderr = cli("up", "--ray", "--runners", "2", "--config", str(write_config()))
    assert exit_code == 2
    assert "with `--ray` each of Ray's nodes has one" in stderr
