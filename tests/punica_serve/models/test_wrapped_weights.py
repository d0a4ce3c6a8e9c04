"""The text model of a checkpoint that also sees images, under the names that versions of transformers have written."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from punica_serve.base_model.config_json import read_model_config
from punica_serve.errors import ModelRejected
from punica_serve.models.model_weights import ModelWeights, load_weights

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text_model(make_model: Callable[..., Path]) -> Path:
    return make_model("gemma3_text", sliding_window=8, head_dim=16)


def _wrap(text_model: Path, folder: Path, rename: Callable[[str], str], images: str) -> Path:
    """The folder of a model that also sees images, with the text model's weights."""
    weights = {rename(name): tensor for name, tensor in load_file(text_model / "model.safetensors").items()}
    save_file({**weights, images: torch.ones(2)}, folder / "model.safetensors")
    text = json.loads((text_model / "config.json").read_text())
    config = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _load(folder: Path) -> ModelWeights:
    return load_weights(folder, read_model_config(folder), torch.float32, CPU)


@pytest.mark.parametrize(
    ("rename", "images"),
    [
        (lambda name: f"language_model.{name}", "vision_tower.vision_model.embeddings.weight"),
        (lambda name: name.replace("model.", "model.language_model.", 1), "model.multi_modal_projector.weight"),
    ],
    ids=["outer", "inner"],
)
def test_the_text_models_weights_are_read(
    text_model: Path, tmp_path: Path, rename: Callable[[str], str], images: str
) -> None:
    alone, wrapped = _load(text_model), _load(_wrap(text_model, tmp_path, rename, images))
    assert torch.equal(wrapped.embedding, alone.embedding) and torch.equal(wrapped.norm, alone.norm)
    for mine, theirs in zip(wrapped.layers, alone.layers, strict=True):
        assert all(torch.equal(mine.linears[name], theirs.linears[name]) for name in theirs.linears)
        assert all(torch.equal(mine.norms[name], theirs.norms[name]) for name in theirs.norms)


def test_an_unknown_part_of_the_wrapper_is_refused(text_model: Path, tmp_path: Path) -> None:
    folder = _wrap(text_model, tmp_path, lambda name: f"language_model.{name}", "audio_tower.weight")
    with pytest.raises(ModelRejected, match="audio_tower"):
        _load(folder)


def test_norms_are_kept_with_the_digits_that_adding_one_needs(text_model: Path) -> None:
    model = read_model_config(text_model)
    stored = load_file(text_model / "model.safetensors")["model.layers.0.input_layernorm.weight"]
    norm = load_weights(text_model, model, torch.bfloat16, CPU).layers[0].norms["input_layernorm"]
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm, stored + 1)
