"""Config files by path, and shipped ones by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.cli.shipped_configs import find_config
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError
from punica_serve.shapes import shape_of


@pytest.mark.parametrize("name", ["demo", "gpu", "sim/figure13", "sim/live-16", "sim/figure20", "sim/figure20-gpus"])
def test_a_shipped_config_has_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_config(Path(name))
    assert found.name == f"{Path(name).name}.yaml"
    assert load_config(found).engine.model


@pytest.mark.parametrize("shape", ["qwen-2.5-7b", "llama-3.1-8b"])
def test_a_config_for_a_download_fits_its_model(
    cli: Callable[..., Any], shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shape stands for the download, which has the weights and the tokenizer too; nothing else is changed."""
    monkeypatch.chdir(tmp_path)
    document = yaml.safe_load(find_config(Path(shape)).read_text())
    assert document["engine"].pop("model").startswith("/models/")
    (name,) = document["adapters"]
    document["adapters"] = {name: "adapter"}
    document["engine"] |= {"model": f"shape:{shape}", "load_format": "dummy", "tokenizer": "demo:model"}
    write_random_adapter(tmp_path / "adapter", shape_of(shape), rank=16, seed=0, target_modules=("q_proj",))
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(document))
    exit_code, stdout, _ = cli("config", "check", "own.yaml", "--gpu", f"{24 * 10**9}")
    assert exit_code == 0 and " ok " in stdout and "32 requests" in stdout, stdout


def test_a_file_wins_over_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").write_text("{}")
    assert find_config(Path("demo")) == Path("demo")


@pytest.mark.parametrize("given", ["mine.yaml", "demos", "compose", ".", "x" * 300])
def test_what_is_neither_is_told_where_it_was_looked_for_and_what_there_is(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"demo, gpu, .*sim/caraserve, .*sim/figure13") as raised:
        find_config(Path(given))
    assert str(tmp_path) in raised.value.message and raised.value.param == "config"


def test_a_folder_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^config file {tmp_path} is a folder, and is not the name of a shipped"):
        find_config(tmp_path)
    with pytest.raises(ConfigError, match=r"^config file /dev/null is no file, and"):
        find_config(Path("/dev/null"))
