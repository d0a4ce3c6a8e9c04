"""Tensors that PEFT's save_pretrained saves beside updates of the embedding and the head."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.errors import AdapterRejected

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WEIGHTS = "adapter_model.safetensors"
COPY = "base_model.model.lm_head.base_layer.weight"
PLAIN = "base_model.model.model.embed_tokens.weight"


@pytest.fixture(scope="module", params=[False, True], ids=["own head", "tied head"])
def base(request: pytest.FixtureRequest, make_llama: Callable[..., Path]) -> Path:
    return make_llama(tie_word_embeddings=request.param)


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    targets = ["lm_head", "embed_tokens", "q_proj"]
    get_peft_model(model, LoraConfig(r=4, target_modules=targets)).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_copies_that_are_equal_are_left_out(base: Path, adapter: Path) -> None:
    assert COPY in load_file(adapter / WEIGHTS)
    model = read_model_config(base)
    loaded = load_adapter(read_adapter(adapter, model), model)
    assert {module for _, module in loaded.pairs} == {"lm_head", "embed_tokens", "q_proj"}


@pytest.fixture
def plain(base: Path, tmp_path: Path) -> Path:
    """Of attention alone, saved with the embeddings, as trainers do that have added tokens."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    peft = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    peft.save_pretrained(tmp_path / "plain", save_embedding_layers=True)
    return tmp_path / "plain"


def test_copies_of_what_is_not_updated_are_left_out(base: Path, plain: Path) -> None:
    assert PLAIN in load_file(plain / WEIGHTS)
    model = read_model_config(base)
    loaded = load_adapter(read_adapter(plain, model), model)
    assert {module for _, module in loaded.pairs} == {"q_proj"}


def test_a_vocabulary_of_another_size_is_refused(base: Path, plain: Path) -> None:
    stored = load_file(plain / WEIGHTS)
    save_file({**stored, PLAIN: torch.zeros(99, 32)}, plain / WEIGHTS)
    with pytest.raises(AdapterRejected, match=r"has shape \[99, 32\], and the base model's has \[97, 32\]") as caught:
        read_adapter(plain, read_model_config(base))
    assert caught.value.param == PLAIN


def test_a_copy_of_another_dtype_is_compared_by_its_numbers(base: Path, adapter: Path, tmp_path: Path) -> None:
    rounded = shutil.copytree(base, tmp_path / "rounded")
    tensors = {name: tensor.bfloat16().float() for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(tensors, rounded / "model.safetensors", metadata={"format": "pt"})
    stored = load_file(adapter / WEIGHTS)
    copies = {name: tensor.bfloat16() for name, tensor in stored.items() if name.endswith("base_layer.weight")}
    save_file({**stored, **copies}, adapter / WEIGHTS)
    assert read_adapter(adapter, read_model_config(rounded)).ranks["lm_head"] == 4


def test_a_copy_that_was_trained_is_refused(base: Path, adapter: Path) -> None:
    stored = load_file(adapter / WEIGHTS)
    stored[COPY][-1, -1] += 1e-3
    save_file(stored, adapter / WEIGHTS)
    with pytest.raises(AdapterRejected, match=r"copy of the base model's lm_head, but differs from it") as caught:
        read_adapter(adapter, read_model_config(base))
    assert caught.value.param == COPY


def test_a_copy_of_a_base_that_is_not_there_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.json").write_text(json.dumps(json.loads((base / "config.json").read_text())))
    with pytest.raises(AdapterRejected, match=r"weights are not on this machine .*save_embedding_layers=False"):
        read_adapter(adapter, read_model_config(tmp_path / "bare"))
