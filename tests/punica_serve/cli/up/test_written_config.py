"""The config file of `up --model`: what it says, where it lies, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import pytest

from punica_serve.cli.up.written_config import write_config
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_it_says_what_the_options_say(data_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_config("models/base", ["a=adapters/a", "b=demo:adapters/hex"], ["cuda:0", "cuda:1"])
    config = load_config(path)
    assert path.is_relative_to(data_home)
    assert config.engine.model == tmp_path / "models/base"
    assert config.adapters["a"] == tmp_path / "adapters/a" and config.adapters["b"].name == "hex"
    assert config.runner.devices == ("cuda:0", "cuda:1")
    assert config.scheduler.port == 0, "a free one, beside other servers of the host"
    assert (config.engine.num_lora_pages, config.engine.host_cache_bytes) == (None, None), "auto"


def test_it_lets_in_the_adapters_that_it_names(data_home: Path, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 256, "target_modules": ["lm_head"]}'
    )
    engine = load_config(write_config("demo:model", [f"a={tmp_path}"], [])).engine
    assert (engine.max_lora_rank, engine.lora_vocabulary) == (256, True)
    usual = load_config(write_config("demo:model", ["hex=demo:adapters/hex"], [])).engine
    assert (usual.max_lora_rank, usual.lora_vocabulary) == (128, False)


def test_the_same_options_use_the_same_file_and_leave_nothing_else(data_home: Path) -> None:
    first = write_config("demo:model", [], [])
    assert write_config("demo:model", [], []) == first
    other = write_config("demo:model", ["hex=demo:adapters/hex"], [])
    assert {path for path in data_home.rglob("*") if path.is_file()} == {first, other}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "m", "--adapter", "latin"], "`--adapter` 'latin' is not NAME=FOLDER"),
        (["--model", "m", "--adapter", "a=1", "--adapter", "a=2"], "`--adapter` names 'a' twice"),
        (["--model", "m", "--device", "tpu"], "the options of `up`: `runner.devices"),
        (["--model", "/nowhere/model"], "model folder /nowhere/model does not exist"),
        (["--model", "m", "--config", "gpu"], "`--model` and `--config` both say what to serve"),
        (["--model", "m", "--config", "demo"], "`--model` and `--config` both say what to serve"),
        (["--adapter", "a=1"], "`--adapter` goes with `--model`"),
        (["--device", "cpu"], "`--device` goes with `--model`"),
    ],
)
def test_wrong_options_are_refused_in_a_line(cli: Cli, arguments: list[str], message: str) -> None:
    exit_code, _, stderr = cli("up", *arguments)
    assert exit_code == 2
    assert message in stderr and stderr.count("\n") == 1


def test_a_folder_that_can_not_be_written_is_named(data_home: Path) -> None:
    data_home.write_text("a file where the folder belongs")
    with pytest.raises(ConfigError, match=r"up/\w+\.yaml can't be written: .*XDG_DATA_HOME"):
        write_config("demo:model", [], [])
