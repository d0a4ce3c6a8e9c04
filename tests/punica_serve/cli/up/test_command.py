"""`up` refuses mistakes before it starts anything: one line, exit code 2. tests/e2e starts it for good."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from punica_serve.bench.free_ports import free_ports

Cli = Callable[..., tuple[int, str, str]]
WriteConfig = Callable[..., Path]


def assert_refused(outcome: tuple[int, str, str], message: str) -> None:
    exit_code, stdout, stderr = outcome
    assert (exit_code, stdout) == (2, "")
    assert stderr.startswith("punica-serve: ")
    assert message in stderr
    assert stderr.count("\n") == 1


def test_a_missing_config_file(cli: Cli, tmp_path: Path) -> None:
    assert_refused(cli("up", "--config", str(tmp_path / "none.yaml")), f"{tmp_path}/none.yaml does not exist")


def test_a_config_file_that_is_not_yaml(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("engine: [")
    assert_refused(cli("up", "--config", str(path)), f"{path} is not valid YAML")


def test_a_config_key_that_does_not_exist(cli: Cli, write_config: WriteConfig) -> None:
    assert_refused(cli("up", "--config", str(write_config(runner={"gpus": 2}))), "`runner.gpus`")


def test_a_missing_model_folder(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    config = write_config(engine={"model": "nowhere"})
    assert_refused(cli("up", "--config", str(config)), f"model folder {tmp_path}/nowhere does not exist")


def test_a_model_folder_without_a_tokenizer(cli: Cli, write_config: WriteConfig, model_folder: Path) -> None:
    (model_folder / "tokenizer.json").unlink()
    assert_refused(cli("up", "--config", str(write_config())), f"{model_folder}/tokenizer.json can't be read")


def test_a_frontend_port_in_use(cli: Cli, write_config: WriteConfig, taken_port: int) -> None:
    message = f"127.0.0.1:{taken_port}: the port is in use; stop what listens there, or change `--port`"
    assert_refused(cli("up", "--config", str(write_config(frontend={"port": taken_port}))), message)
    assert_refused(cli("up", "--config", str(write_config()), "--port", str(taken_port)), message)


def test_a_scheduler_port_in_use(cli: Cli, write_config: WriteConfig, taken_port: int) -> None:
    outcome = cli("up", "--config", str(write_config(scheduler={"port": taken_port})))
    assert_refused(
        outcome, f"127.0.0.1:{taken_port}: the port is in use; stop what listens there, or change `scheduler.port`"
    )


def test_a_second_frontends_port_in_use(cli: Cli, write_config: WriteConfig, taken_port: int) -> None:
    outcome = cli("up", "--config", str(write_config()), "--port", str(taken_port - 1), "--frontends", "2")
    assert_refused(outcome, "the port is in use; stop what listens there, or change `--port`")


def test_a_second_frontends_port_that_is_the_schedulers(cli: Cli, write_config: WriteConfig) -> None:
    first, second = free_ports(2)
    config = str(write_config(scheduler={"port": second}))
    outcome = cli("up", "--config", config, "--port", str(first), "--frontends", "2")
    assert_refused(outcome, f"`scheduler.port` {second} is one of the frontends' ports too; change it or `--port`")
    outcome = cli("up", "--config", config, "--port", str(second))
    assert_refused(outcome, f"`scheduler.port` {second} is the frontend's port too; change it or `--port`")


def test_a_gpu_for_several_runners(cli: Cli, write_config: WriteConfig) -> None:
    config = write_config(runner={"devices": ["cuda:0"]})
    assert_refused(
        cli("up", "--config", str(config), "--runners", "2"), "`--runners` 2 would give cuda:0 to each of them"
    )


def test_a_group_over_several_hosts(cli: Cli, write_config: WriteConfig) -> None:
    config = write_config(runner={"hosts": 2, "rendezvous": "10.0.0.1:29500"})
    for options in ((), ("--ray",)):
        assert_refused(cli("up", "--config", str(config), *options), "`runner.hosts` is 2, and `up` runs on one")


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a machine with a GPU there is nothing to say")
def test_a_gpu_that_this_machine_lacks(cli: Cli, write_config: WriteConfig) -> None:
    config = write_config(runner={"devices": ["cpu", "cuda:0"]})
    assert_refused(cli("up", "--config", str(config)), "device 'cuda:0' can't be used: ")


def test_a_scale_hook_that_is_not_there(cli: Cli, write_config: WriteConfig, tmp_path: Path) -> None:
    path = write_config(scheduler={"scale": {"hook": [f"{tmp_path}/none"]}})
    assert_refused(cli("up", "--config", str(path)), f"`scheduler.scale.hook`: {tmp_path}/none is not a command")


def test_a_data_folder_that_cannot_be_written(cli: Cli, write_config: WriteConfig) -> None:
    message = "`data_folder` /proc/x is not a folder that can be written to: "
    assert_refused(cli("up", "--config", str(write_config(data_folder="/proc/x"))), message)
