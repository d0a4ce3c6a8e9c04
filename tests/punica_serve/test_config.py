from pathlib import Path

import pytest

from punica_serve.config import load_config, parse_config
from punica_serve.errors import ConfigError


def test_the_demo_config_is_valid_and_points_into_the_package() -> None:
    config = load_config(Path(__file__).parents[2] / "configs" / "demo.yaml")
    assert config.engine.served_name == "numbers"
    assert config.engine.model.parts[-2:] == ("demo", "model")
    assert set(config.adapters) == {"roman", "english", "french", "binary", "hex"}
    assert config.runner.devices == ("cpu", "cpu")


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "c.yaml"
    path.parent.mkdir()
    path.write_text("engine: {model: ../base}\nadapters: {x: /a/x, y: y}\n")
    config = load_config(path)
    assert config.engine.model == tmp_path / "base"
    assert config.adapters == {"x": Path("/a/x"), "y": tmp_path / "sub" / "y"}


def test_the_base_is_called_by_its_folder_unless_named(tmp_path: Path) -> None:
    assert parse_config({"engine": {"model": "m/base"}}, source="x", folder=tmp_path).engine.served_name == "base"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: [", "is not YAML"),
        ("- 1", "must be a mapping"),
        ("runner: {}", "`engine`: Field required"),
        ("engine: {model: m, max_batch: 3}", "`engine.max_batch`: Extra inputs are not permitted, got 3"),
        ("engine: {model: m, page_size: 0}", "`engine.page_size`: .* got 0"),
        ("engine: {model: m}\nfrontend: {port: 70000}", "`frontend.port`"),
        ("engine: {model: m, dtype: int8}\nfrontend: {port: x}", r"`engine.dtype`.*\(and 1 more\)"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml can't be read: No such file"):
        load_config(tmp_path / "none.yaml")
