import logging
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Event

import pytest

from punica_serve.adapters.catalog import AdapterCatalog
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.errors import AdapterNotFound
from punica_serve.model_config import ModelConfig


@pytest.fixture
def folders(tmp_path: Path, model: ModelConfig) -> dict[str, Path]:
    return {
        name: write_random_adapter(tmp_path / name, model, rank=2, seed=seed, target_modules=("o_proj",))
        for seed, name in enumerate(["roman", "hex", "french"])
    }


def names(catalog: AdapterCatalog) -> list[str]:
    return [entry.name for entry in catalog.entries]


def test_names_lead_to_refs_in_the_order_given(folders: dict[str, Path], model: ModelConfig) -> None:
    catalog = AdapterCatalog.load(folders, model, base_name="base")
    assert names(catalog) == ["roman", "hex", "french"]
    assert not catalog.rejected
    for entry in catalog.entries:
        assert entry.ref == catalog.ref(entry.name) == read_adapter(folders[entry.name], model).ref


def test_no_adapters_make_an_empty_catalog(model: ModelConfig) -> None:
    catalog = AdapterCatalog.load({}, model, base_name="base")
    assert (catalog.entries, dict(catalog.rejected)) == ((), {})


def test_a_broken_adapter_leaves_the_others(
    folders: dict[str, Path], model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    (folders["hex"] / "adapter_model.safetensors").write_bytes(b"broken")
    with caplog.at_level(logging.WARNING):
        catalog = AdapterCatalog.load(folders | {"gone": Path("/nowhere")}, model, base_name="base")
    assert names(catalog) == ["roman", "french"]
    assert set(catalog.rejected) == {"hex", "gone"}
    assert str(folders["hex"]) in catalog.rejected["hex"].message
    assert sorted(record.getMessage().split("'")[1] for record in caplog.records) == ["gone", "hex"]


def test_reading_can_be_stopped(folders: dict[str, Path], model: ModelConfig) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(CancelledError):
        AdapterCatalog.load(folders, model, base_name="base", stop=stop)


def test_refusals_keep_no_traceback(folders: dict[str, Path], model: ModelConfig) -> None:
    (folders["hex"] / "adapter_model.safetensors").write_bytes(b"broken")
    error = AdapterCatalog.load(folders, model, base_name="base").rejected["hex"]
    assert error.__traceback__ is None
    assert error.__cause__ is None and error.__context__ is None


@pytest.mark.parametrize("lora_id", ["unknown", "", "Roman", "x" * 10_000])
def test_an_unknown_name_says_where_the_known_ones_are(
    folders: dict[str, Path], model: ModelConfig, lora_id: str
) -> None:
    catalog = AdapterCatalog.load(folders, model, base_name="base")
    with pytest.raises(AdapterNotFound, match="GET /v1/models") as caught:
        catalog.ref(lora_id)
    assert caught.value.param == "lora_id"
    assert len(caught.value.message) < 400


def test_a_rejected_adapter_is_not_found(folders: dict[str, Path], model: ModelConfig) -> None:
    (folders["hex"] / "adapter_config.json").unlink()
    with pytest.raises(AdapterNotFound):
        AdapterCatalog.load(folders, model, base_name="base").ref("hex")


@pytest.mark.parametrize("name", ["base", "", " ", "a b", "a/b", "-a", "..", "a\n", "naïve", "a" * 129])
def test_bad_names_are_rejected(folders: dict[str, Path], model: ModelConfig, name: str) -> None:
    catalog = AdapterCatalog.load({name: folders["roman"]}, model, base_name="base")
    assert not catalog.entries
    assert catalog.rejected[name].param == "name"


@pytest.mark.parametrize("name", ["a", "0", "ft:org-1.2_x", "A" * 128])
def test_good_names_are_served(folders: dict[str, Path], model: ModelConfig, name: str) -> None:
    assert names(AdapterCatalog.load({name: folders["roman"]}, model, base_name="base")) == [name]


def test_strict_base_is_passed_on(folders: dict[str, Path], model: ModelConfig) -> None:
    (folders["hex"] / "adapter_config.json").write_text(
        (folders["hex"] / "adapter_config.json").read_text().replace('"tiny"', '"other"')
    )
    assert names(AdapterCatalog.load(folders, model, base_name="base", strict_base=False)) == ["roman", "hex", "french"]
    catalog = AdapterCatalog.load(folders, model, base_name="base", strict_base=True)
    assert catalog.rejected["hex"].param == "base_model_name_or_path"
