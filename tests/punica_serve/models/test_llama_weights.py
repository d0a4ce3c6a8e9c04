"""Checks of a checkpoint. What the model computes is in engine/test_parity.py."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from punica_serve.errors import ModelRejected
from punica_serve.model_config import ModelConfig
from punica_serve.models.llama_weights import gather_weights
from punica_serve.models.weights import read_weights

Tensors = dict[str, Tensor]


@pytest.fixture
def tensors(tiny_llama: Path) -> Tensors:
    return read_weights(tiny_llama, torch.float32, torch.device("cpu"))


def test_projections_are_stacked_in_order(tensors: Tensors, tiny_model: ModelConfig) -> None:
    before = dict(tensors)
    weights = gather_weights(tensors, tiny_model)
    prefix = "model.layers.1.self_attn."
    qkv = torch.cat([before[f"{prefix}{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(weights.layers[1].qkv, qkv)
    assert tensors == {}, "every tensor has its place"


def _lose(tensors: Tensors) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _reshape(tensors: Tensors) -> None:
    tensors["model.norm.weight"] = torch.zeros(3)


def _add(tensors: Tensors) -> None:
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_lose, "lack tensor `model.layers.1.mlp.up_proj.weight`"),
        (_reshape, r"`model.norm.weight` has shape \(3,\), config.json says \(32,\)"),
        (_add, "hold tensor `model.layers.0.self_attn.q_proj.bias`, which no Llama layer reads"),
    ],
)
def test_a_checkpoint_that_is_not_the_config_is_refused(
    tensors: Tensors, tiny_model: ModelConfig, damage: Callable[[Tensors], None], message: str
) -> None:
    damage(tensors)
    with pytest.raises(ModelRejected, match=message):
        gather_weights(tensors, tiny_model)


def test_a_head_of_its_own_wins_over_a_config_that_ties(tensors: Tensors, tiny_model: ModelConfig) -> None:
    """As transformers has it."""
    head = tensors["lm_head.weight"]
    weights = gather_weights(tensors, replace(tiny_model, tie_word_embeddings=True))
    assert weights.lm_head is head


def test_a_tied_head_is_the_embedding(make_llama: Callable[..., Path], tiny_model: ModelConfig) -> None:
    folder = make_llama(tie_word_embeddings=True)
    weights = gather_weights(
        read_weights(folder, torch.float32, torch.device("cpu")), replace(tiny_model, tie_word_embeddings=True)
    )
    assert weights.lm_head is weights.embedding
