import json
import logging
from concurrent.futures import CancelledError
from importlib.resources import files
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from punica_serve.adapters.dummy import dummy_adapters
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.registry.config_adapters import served_base, shared_adapters
from tiny_config import tiny_config


@pytest.fixture(scope="session")
def model() -> ModelConfig:
    return read_model_config(Path(str(files("punica_serve.demo"))) / "model")


@pytest.fixture
def folders(tmp_path: Path, model: ModelConfig) -> dict[str, Path]:
    return {
        name: write_random_adapter(tmp_path / name, model, rank=2, seed=seed, target_modules=("o_proj",))
        for seed, name in enumerate(["roman", "hex", "french"])
    }


def config_of(folders: dict[str, Path], **settings: Any) -> ClusterConfig:
    document = {"engine": {"model": "base"}, "adapters": {name: str(path) for name, path in folders.items()}}
    return parse_config({**document, **settings}, source="x", folder=Path("/"))


def test_they_lie_in_their_folders_and_belong_to_all_in_the_order_given(
    folders: dict[str, Path], model: ModelConfig
) -> None:
    shared = shared_adapters(config_of(folders), model)
    assert list(shared.versions) == ["roman", "hex", "french"]
    assert not shared.rejected
    for name, version in shared.versions.items():
        assert version.full_name == f"shared/{name}"
        assert version.ref == read_adapter(folders[name], model)
        assert version.ref.uri == str(folders[name])


def test_a_broken_adapter_leaves_the_others(
    folders: dict[str, Path], model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    (folders["hex"] / "adapter_model.safetensors").write_bytes(b"broken")
    with caplog.at_level(logging.WARNING):
        shared = shared_adapters(config_of(folders | {"gone": Path("/nowhere")}), model)
    assert list(shared.versions) == ["roman", "french"]
    assert set(shared.rejected) == {"hex", "gone"}
    for name, folder in (("hex", folders["hex"]), ("gone", Path("/nowhere"))):
        assert str(folder) in str(shared.rejected[name]) and str(folder) in caplog.text, "the operator must find it"
        assert str(folder) not in shared.rejected[name].message, "clients are told the message"
    assert shared.rejected["hex"].__traceback__ is None, "it would keep the weights in memory"
    assert sorted(record.getMessage().split("'")[1] for record in caplog.records) == ["gone", "hex"]


def test_one_whose_patterns_cannot_be_matched_leaves_the_others(
    folders: dict[str, Path], model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = folders["hex"] / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "target_modules": ".*o_proj"}))
    assert "hex" in shared_adapters(config_of(folders), model).versions
    config.write_text(config.read_text() + " ")
    monkeypatch.setattr("punica_serve.adapters.pattern_process._COMMAND", ("/nowhere/python",))
    shared = shared_adapters(config_of(folders), model)
    assert (list(shared.versions), list(shared.rejected)) == (["roman", "french"], ["hex"])


@pytest.mark.parametrize("name", ["a/b", "base", ""])
def test_names_that_no_adapter_may_have_are_refused(folders: dict[str, Path], model: ModelConfig, name: str) -> None:
    shared = shared_adapters(config_of({name: folders["roman"]}), model)
    assert (dict(shared.versions), shared.rejected[name].param) == ({}, "name")


def test_one_trained_on_another_base_is_refused_where_that_is_strict(
    folders: dict[str, Path], model: ModelConfig
) -> None:
    config_file = folders["hex"] / "adapter_config.json"
    config_file.write_text(config_file.read_text().replace(model.name, "another"))
    assert not shared_adapters(config_of(folders), model).rejected
    strict = shared_adapters(config_of(folders, strict_base=True), model)
    assert strict.strict_name == model.name
    rejected = strict.rejected
    assert rejected["hex"].param == "base_model_name_or_path"


def test_dummies_are_served_where_no_folder_has_the_name(folders: dict[str, Path], model: ModelConfig) -> None:
    config = config_of({"dummy-1": folders["roman"]}, dummy_adapters={"count": 2, "rank": 8})
    shared = shared_adapters(config, model)
    assert shared.versions["dummy-0"].ref == dummy_adapters(config.dummy_adapters, model)["dummy-0"]
    assert shared.versions["dummy-1"].ref.uri == str(folders["roman"])


def test_reading_can_be_stopped(folders: dict[str, Path], model: ModelConfig) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(CancelledError):
        shared_adapters(config_of(folders), model, stop=stop)


def test_one_that_the_lora_pool_could_not_hold_is_refused(
    folders: dict[str, Path], model: ModelConfig, tmp_path: Path
) -> None:
    folders["large"] = write_random_adapter(tmp_path / "large", model, rank=9, seed=0)
    config = config_of(folders, engine={"model": "base", "num_lora_pages": 1})
    assert set(shared_adapters(config, model).rejected) == {"large"}


def test_base_models_are_told_apart_by_what_adapters_must_fit() -> None:
    ours = served_base("ours", tiny_config())
    assert (ours.name, ours.shape) == ("ours", served_base("renamed", tiny_config(name="renamed")).shape)
    for change in ({"num_hidden_layers": 3}, {"intermediate_size": 48}, {"vocab_size": 128}):
        assert served_base("ours", tiny_config(**change)).shape != ours.shape


def test_the_shape_of_a_base_model_stays_what_registries_keep() -> None:
    """Another one would have all adapters of the model refused after an upgrade."""
    assert served_base("ours", tiny_config()).shape == "473969b97bfc2664"
