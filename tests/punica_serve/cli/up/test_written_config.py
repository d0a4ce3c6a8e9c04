"""The config file of `up --model`: what it says, where it lies, and what is refused."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.cli.up.written_config import config_for
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError

Cli = Callable[..., tuple[int, str, str]]


def write_config(model: str, adapters: list[str], devices: list[str]) -> Path:
    written = config_for(model, adapters, devices)
    written.write()
    assert load_config(written.path) == written.config
    return written.path


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
        (
            ["--model", "nope"],
            "`--model` nope: there is no such folder; give a folder on this machine in Hugging Face's f",
        ),
        (["--model", "/nowhere/model"], "`--model` /nowhere/model: there is no such folder; give "),
        (["--model", "/dev"], "`--model` /dev: the folder has no config.json; give "),
        (
            ["--model", ""],
            "`--model` names nothing; give a folder on this machine in Hugging Face's format, or demo:model",
        ),
        (["--model", "demo:nope"], "`--model` demo:nope: there is no such folder; give "),
        (
            ["--model", "shape:1b"],
            "`--model` shape:1b is a shape, without weights to serve; give a folder on this machine",
        ),
        (["--model", "~nobody-here/m"], "`--model` ~nobody-here/m: no such user is on this machine"),
        (["--model", "m", "--adapter", "a=~nobody-here/a"], "`--adapter` ~nobody-here/a: no such user"),
        (["--model", "m", "--config", "gpu"], "`--model` and `--config` both say what to serve"),
        (["--model", "m", "--config", "demo"], "`--model` and `--config` both say what to serve"),
        (["--adapter", "a=1"], "`--adapter` goes with `--model`"),
        (["--device", "cpu"], "`--device` goes with `--model`"),
    ],
)
def test_wrong_options_are_refused_in_a_line_and_leave_no_file(
    cli: Cli, data_home: Path, arguments: list[str], message: str
) -> None:
    exit_code, stdout, stderr = cli("up", *arguments)
    assert exit_code == 2 and not stdout and not list(data_home.rglob("*.yaml"))
    assert message in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ("a b=demo:adapters/hex", "adapter name 'a b' must be 1 to 128 letters"),
        ("model=demo:adapters/hex", "adapter name 'model' is the base model's; choose another"),
        ("a=/nowhere", "`--adapter` a=/nowhere: adapter_config.json: can't be read: no such folder, or not readable; "),
        ("a=demo:model", "adapter_config.json: can't be read: No such file or directory; give a PEFT folder for this"),
    ],
)
def test_an_adapter_that_can_not_be_served_is_refused_by_name_and_leaves_no_file(
    cli: Cli, data_home: Path, adapter: str, message: str
) -> None:
    exit_code, stdout, stderr = cli("up", "--model", "demo:model", "--adapter", adapter)
    assert exit_code == 2 and not stdout
    assert message in stderr and stderr.count("\n") == 1
    assert not list(data_home.rglob("*.yaml"))


def test_an_adapter_of_another_model_or_cut_short_is_refused_by_name(
    cli: Cli, model_folder: Path, tmp_path: Path
) -> None:
    folder = write_random_adapter(tmp_path / "adapter", read_model_config(model_folder), rank=8, seed=0)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    arguments = ("up", "--model", str(model_folder), "--adapter", f"a={folder}")
    given = config.read_text()
    config.write_text(json.dumps(json.loads(given) | {"target_modules": ["c_attn"]}))
    assert f"`--adapter` a={folder}: adapter_config.json: `target_modules`" in cli(*arguments)[2]
    config.write_text(given)
    weights.write_bytes(weights.read_bytes()[:-1])
    exit_code, _, stderr = cli(*arguments)
    assert exit_code == 2 and f"`--adapter` a={folder}: adapter_model.safetensors: it is truncated" in stderr


def test_an_adapter_is_refused_for_its_weights(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    folder = write_random_adapter(tmp_path / "adapter", read_model_config(model_folder), rank=8, seed=0)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    fields = json.loads(config.read_text())
    arguments = ("up", "--model", str(model_folder), "--adapter", f"a={folder}")

    config.write_text(json.dumps(fields | {"rank_pattern": {"q_proj": 4}}))
    exit_code, stdout, stderr = cli(*arguments)
    assert exit_code == 2 and "ready" not in stdout and stderr.count("\n") == 1
    assert f"`--adapter` a={folder}: adapter_model.safetensors: tensor `" in stderr
    assert "has shape [8, " in stderr and "need [4, " in stderr

    config.write_text(json.dumps(fields))
    tensors = load_file(weights)
    name = next(iter(tensors))
    tensors[name][0, 0] = math.nan
    save_file(tensors, weights)
    exit_code, stdout, stderr = cli(*arguments)
    assert exit_code == 2 and "ready" not in stdout and stderr.count("\n") == 1
    assert f"a={folder}: adapter_model.safetensors: tensor `{name}` holds NaN or infinity; give a PEFT folder" in stderr


def test_a_folder_that_can_not_be_written_is_named(data_home: Path) -> None:
    data_home.write_text("a file where the folder belongs")
    with pytest.raises(ConfigError, match=r"up/\w+\.yaml can't be written: .*XDG_DATA_HOME"):
        write_config("demo:model", [], [])
