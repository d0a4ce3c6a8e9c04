"""Adapters that `up` has checked are not read again by its frontends, unless something has changed."""

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.cli.up.given_adapters import check_given_adapters
from punica_serve.config.cluster import ClusterConfig, parse_config
from punica_serve.protocol import AdapterRef
from punica_serve.registry.checked_adapters import CHECKED_ENV, CheckedAdapter, CheckedAdapters
from punica_serve.registry.config_adapters import shared_adapters

#: A digest that no reading of files finds.
_TOLD = "f" * 64


@pytest.fixture
def model(tiny_llama: Path) -> ModelConfig:
    return read_model_config(tiny_llama)


@pytest.fixture
def config(tiny_llama: Path, model: ModelConfig, tmp_path: Path) -> ClusterConfig:
    folders = {name: str(write_random_adapter(tmp_path / name, model, rank=8, seed=0)) for name in "xy"}
    document = {"engine": {"model": str(tiny_llama)}, "adapters": folders}
    return parse_config(document, source="x", folder=tmp_path)


def _telling(checked: CheckedAdapters) -> CheckedAdapters:
    """The same with other digests, which show whether they are taken from here."""
    told = {
        folder: msgspec.structs.replace(each, ref=msgspec.structs.replace(each.ref, digest=_TOLD))
        for folder, each in checked.by_folder.items()
    }
    return CheckedAdapters.from_environment(CheckedAdapters(checked.shape, told).to_environment())


def test_checked_adapters_are_not_read_again(config: ClusterConfig, model: ModelConfig) -> None:
    checked = check_given_adapters(config, model)
    read = shared_adapters(config, model)
    assert shared_adapters(config, model, checked=checked) == read
    told = shared_adapters(config, model, checked=_telling(checked))
    assert [version.ref.digest for version in told.versions.values()] == [_TOLD, _TOLD]


def test_files_that_have_changed_are_read(config: ClusterConfig, model: ModelConfig) -> None:
    told = _telling(check_given_adapters(config, model))
    weights = config.adapters["x"] / WEIGHTS_NAME
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns))  # the time of its last change of any kind is now
    (config.adapters["y"] / WEIGHTS_NAME).unlink()
    shared = shared_adapters(config, model, checked=told)
    assert shared.versions["x"].ref.digest not in ("", _TOLD) and list(shared.rejected) == ["y"]


def test_a_base_model_of_another_shape_reads_all(config: ClusterConfig, model: ModelConfig) -> None:
    told = _telling(check_given_adapters(config, model))
    larger = replace(model, vocab_size=model.vocab_size + 8)
    digests = {version.ref.digest for version in shared_adapters(config, larger, checked=told).versions.values()}
    assert _TOLD not in digests


def test_a_variable_that_is_too_long_or_damaged_leaves_adapters_out() -> None:
    ref = AdapterRef("d", "u" * 1000, 1, {})
    many = CheckedAdapters("s", {f"/{number}": CheckedAdapter((), ref) for number in range(200)})
    environment = many.to_environment()
    assert len(environment[CHECKED_ENV]) < 128 * 1024
    assert 50 < len(CheckedAdapters.from_environment(environment).by_folder) < 200
    assert CheckedAdapters.from_environment({CHECKED_ENV: environment[CHECKED_ENV][:-9]}) == CheckedAdapters()
    assert CheckedAdapters.from_environment({}) == CheckedAdapters()
