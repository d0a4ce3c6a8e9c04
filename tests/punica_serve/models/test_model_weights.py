"""Checks of a checkpoint. The model's results are tested in engine/test_parity.py."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.errors import ModelRejected
from punica_serve.models.model_weights import dummy_weights, load_weights, weights_num_bytes
from punica_serve.protocol import LoraGroup

CPU = torch.device("cpu")
Tensors = dict[str, Tensor]


@pytest.fixture
def tensors(tiny_llama: Path) -> Tensors:
    return load_file(tiny_llama / "model.safetensors")


def test_projections_are_stacked_in_order_and_converted(
    tensors: Tensors, tiny_llama: Path, tiny_model: ModelConfig
) -> None:
    layer = load_weights(tiny_llama, tiny_model, torch.bfloat16, CPU).layers[1]
    stacks: tuple[tuple[LoraGroup, str, Iterable[str]], ...] = (
        ("qkv", "self_attn", "qkv"),
        ("gate_up", "mlp", ("gate", "up")),
    )
    for group, block, names in stacks:
        parts = [tensors[f"model.layers.1.{block}.{name}_proj.weight"] for name in names]
        assert torch.equal(layer.linears[group], torch.cat(parts).bfloat16())
    assert torch.equal(layer.linears["down"], tensors["model.layers.1.mlp.down_proj.weight"].bfloat16())
    assert torch.equal(layer.norms["input_layernorm"], tensors["model.layers.1.input_layernorm.weight"].bfloat16())


def test_a_checkpoint_that_is_not_the_config_is_refused(
    tensors: Tensors, tiny_model: ModelConfig, tmp_path: Path
) -> None:
    """By the rule of base_model/checkpoint.py, which `config check` has, too."""
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelRejected, match=r"lack tensor `model.layers.1.mlp.up_proj.weight`"):
        load_weights(tmp_path, tiny_model, torch.float32, CPU)


def test_frequencies_that_old_checkpoints_hold_are_no_leftovers(
    tensors: Tensors, tiny_model: ModelConfig, tmp_path: Path
) -> None:
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    load_weights(tmp_path, tiny_model, torch.float32, CPU)


def test_a_head_of_its_own_wins_over_a_config_that_ties(
    tensors: Tensors, tiny_llama: Path, tiny_model: ModelConfig
) -> None:
    """As transformers has it."""
    weights = load_weights(tiny_llama, replace(tiny_model, tie_word_embeddings=True), torch.float32, CPU)
    assert torch.equal(weights.lm_head, tensors["lm_head.weight"])
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])


def test_a_tied_head_is_the_embedding(make_llama: Callable[..., Path], tiny_model: ModelConfig) -> None:
    folder, model = make_llama(tie_word_embeddings=True), replace(tiny_model, tie_word_embeddings=True)
    weights = load_weights(folder, model, torch.float32, CPU)
    assert weights.lm_head is weights.embedding
    assert torch.equal(weights.lm_head, load_file(folder / "model.safetensors")["model.embed_tokens.weight"])


def test_dummy_weights_are_random_and_the_same_again(tiny_model: ModelConfig) -> None:
    first, again = (dummy_weights(tiny_model, torch.float32, CPU) for _ in range(2))
    layer = first.layers[0]
    assert torch.equal(layer.linears["qkv"], again.layers[0].linears["qkv"])
    assert not torch.equal(layer.linears["qkv"], first.layers[1].linears["qkv"])
    assert layer.linears["gate_up"].std().item() == pytest.approx(0.02, rel=0.1)
    assert layer.norms["input_layernorm"].unique().tolist() == first.norm.unique().tolist() == [1.0]


def test_the_size_is_that_of_all_tensors(tensors: Tensors, tiny_model: ModelConfig) -> None:
    assert weights_num_bytes(tiny_model, torch.float32) == sum(tensor.nbytes for tensor in tensors.values())
    tied = weights_num_bytes(replace(tiny_model, tie_word_embeddings=True), torch.float16)
    assert tied == sum(tensor.nbytes for name, tensor in tensors.items() if name != "lm_head.weight") // 2
