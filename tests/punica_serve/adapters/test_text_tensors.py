"""Against transformers' and PEFT's own paths of text models in models that also see images."""

import json
import logging
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import AdapterRejected

WEIGHTS = "adapter_model.safetensors"
TEXT_ONLY = r"model\.language_model\..*\.(q_proj|down_proj)"


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The config of a Gemma 3 that also sees images."""
    text = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    vision = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    config = Gemma3Config(
        text_config={**text, **heads}, vision_config=vision, architectures=["Gemma3ForConditionalGeneration"]
    )
    config.save_pretrained(folder := tmp_path_factory.mktemp("gemma3"))
    return folder


@pytest.fixture(scope="module")
def text(wrapper: Path) -> ModelConfig:
    return read_model_config(wrapper)


def _train(wrapper: Path, folder: Path, targets: str | list[str]) -> Path:
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(Gemma3Config.from_pretrained(wrapper))
    config = LoraConfig(r=4, lora_alpha=6, target_modules=targets, init_lora_weights=False)
    get_peft_model(model, config).save_pretrained(folder)
    return folder


def test_an_adapter_trained_on_a_wrapper_updates_the_text_model(
    wrapper: Path, text: ModelConfig, tmp_path: Path
) -> None:
    folder = _train(wrapper, tmp_path / "text", TEXT_ONLY)
    adapter, stored = load_adapter(read_adapter(folder, text), text), load_file(folder / WEIGHTS)
    assert adapter.ref.ranks == {"q_proj": 4, "down_proj": 4}
    a = stored["base_model.model.model.language_model.layers.1.self_attn.q_proj.lora_A.weight"]
    assert torch.equal(torch.from_numpy(adapter.pairs[1, "q_proj"].a.float32()), a)


def test_updates_of_the_part_for_images_change_no_text(
    wrapper: Path, text: ModelConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = _train(wrapper, tmp_path / "both", ["q_proj", "v_proj"])
    with caplog.at_level(logging.WARNING):
        adapter = load_adapter(read_adapter(folder, text), text)
    assert "has 4 tensors for images, which are not served" in caplog.text
    assert set(adapter.pairs) == {(layer, module) for layer in range(2) for module in ("q_proj", "v_proj")}


def test_an_adapter_of_images_alone_is_refused(wrapper: Path, text: ModelConfig, tmp_path: Path) -> None:
    folder = _train(wrapper, tmp_path / "images", r".*vision_tower.*(q|v)_proj")
    with pytest.raises(AdapterRejected, match=r"updates only the part for images, as tensor `.*vision_tower"):
        read_adapter(folder, text)


def test_older_paths_mean_the_same(wrapper: Path, text: ModelConfig, tmp_path: Path) -> None:
    folder = _train(wrapper, tmp_path / "older", TEXT_ONLY)
    tensors = load_file(folder / WEIGHTS)
    save_file(
        {n.replace("model.language_model", "language_model.model"): t for n, t in tensors.items()}, folder / WEIGHTS
    )
    path = folder / "adapter_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"target_modules": r"language_model\.model\..*q_proj|.*n_proj"})
    )
    assert read_adapter(folder, text).ranks == {"q_proj": 4, "down_proj": 4}
