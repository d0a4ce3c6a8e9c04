import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from punica_serve.process.run import TOKEN_ENV

Cli = Callable[..., tuple[int, str, str]]
WriteConfig = Callable[..., Path]


@pytest.mark.parametrize("name", ["scheduler", "runner", "frontend"])
def test_a_process_without_the_clusters_token_does_not_start(
    name: str, cli: Cli, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    exit_code, _, stderr = cli(name, "--config", str(write_config()))
    assert exit_code == 2
    assert stderr.startswith(f"punica-serve: {TOKEN_ENV} is not set; ")


@pytest.mark.parametrize("name", ["runner", "frontend"])
def test_a_scheduler_port_that_is_none_is_not_dialled(
    name: str, cli: Cli, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    exit_code, _, stderr = cli(name, "--config", str(write_config(scheduler={"port": 0})))
    assert exit_code == 2
    assert stderr.startswith("punica-serve: `scheduler.port` is 0") and stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["scheduler", "runner", "frontend"])
def test_a_process_that_could_not_export_its_traces_does_not_start(
    name: str, cli: Cli, write_config: WriteConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    config = write_config(scheduler={"port": 1}, tracing={"otlp_endpoint": "http://collector:4318"})
    exit_code, _, stderr = cli(name, "--config", str(config))
    assert exit_code == 2
    assert stderr.startswith("punica-serve: traces can't be exported to http://collector:4318: ")
    assert "pip install 'punica-serve[otel]'" in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["scheduler", "runner", "frontend"])
def test_a_process_without_its_config_file_does_not_start(name: str, cli: Cli, tmp_path: Path) -> None:
    exit_code, _, stderr = cli(name, "--config", str(tmp_path / "none.yaml"))
    assert exit_code == 2
    assert stderr.startswith("punica-serve: config file ")


def test_a_scheduler_whose_port_is_in_use_does_not_start(
    cli: Cli, write_config: WriteConfig, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    exit_code, _, stderr = cli("scheduler", "--config", str(write_config()), "--port", str(taken_port))
    assert exit_code == 2
    assert f"can't listen on 127.0.0.1:{taken_port}" in stderr


def test_a_frontend_whose_port_is_in_use_does_not_start(
    cli: Cli, write_config: WriteConfig, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    config = write_config(scheduler={"port": 1})
    exit_code, _, stderr = cli("frontend", "--config", str(config), "--port", str(taken_port))
    assert exit_code == 2
    assert str(taken_port) in stderr.splitlines()[-1]


def test_a_frontend_that_others_can_reach_does_not_start_without_a_key(
    cli: Cli, write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    config = write_config(scheduler={"port": 1}, data_folder=str(tmp_path))
    exit_code, _, stderr = cli("frontend", "--config", str(config), "--host", "0.0.0.0", "--port", "0")
    assert exit_code == 2
    assert "punica-serve keys create" in stderr.splitlines()[-1] and "--insecure-no-auth" in stderr.splitlines()[-1]
