"""Config files by path, and shipped ones by name."""

from pathlib import Path

import pytest

from punica_serve.cli.shipped_configs import find_config
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError


@pytest.mark.parametrize("name", ["demo", "gpu", "sim/figure13", "sim/live-16", "sim/figure20", "sim/figure20-gpus"])
def test_a_shipped_config_has_a_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_config(Path(name))
    assert found.name == f"{Path(name).name}.yaml"
    assert load_config(found).engine.model


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
