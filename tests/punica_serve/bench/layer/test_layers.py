"""The layers that are timed are the engine's: LoRA of the planned rows changes them, and nothing else does."""

from dataclasses import replace

import pytest
import torch

from punica_serve.base_model.lora_layout import LoraLimits
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.bench.layer.layers import NoAttention, RandomLayers
from punica_serve.bench.layer.setting import adapters_of
from punica_serve.engine.cuda.batch_bucket import BatchBucket
from punica_serve.workload import Population


@pytest.fixture(scope="module")
def layers(tiny_model: ModelConfig) -> RandomLayers:
    torch.manual_seed(3)
    with torch.inference_mode():
        return RandomLayers(
            tiny_model,
            num_layers=2,
            buckets=[BatchBucket(0, 1), BatchBucket(0, 4), BatchBucket(24, 3)],
            context_length=20,
            rank=8,
            limits=LoraLimits(8),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )


@pytest.mark.parametrize(
    ("population", "adapters"),
    [(None, [None] * 4), (Population.UNIFORM, [0, 0, 1, 1]), (Population.IDENTICAL, [0] * 4)],
)
def test_rows_of_one_adapter_are_adjacent(population: Population | None, adapters: list[int | None]) -> None:
    assert adapters_of(population, 4) == adapters


@torch.inference_mode()
def test_lora_changes_the_rows_that_have_it(layers: RandomLayers) -> None:
    backbone = layers.forward(layers.decode([None] * 4))().clone()
    mixed = layers.forward(layers.decode([None, 0, 0, None]))()
    assert torch.equal(mixed[[0, 3]], backbone[[0, 3]])
    assert (mixed[1:3] - backbone[1:3]).abs().amax(1).min() > 1e-4


@torch.inference_mode()
def test_lora_of_a_prompt_changes_its_rows_and_that_of_decodes_theirs(layers: RandomLayers) -> None:
    backbone = layers.forward(layers.prefill(24, None, [None] * 3))().clone()
    prompt = layers.forward(layers.prefill(24, 0, [None] * 3))().clone()
    both = layers.check_finite(layers.prefill(24, 0, [1, 2, 3]))
    changed, changed_more = ((own != before).any(1) for own, before in ((prompt, backbone), (both, prompt)))
    assert changed.tolist() == [True] * 24 + [False] * 3
    assert changed_more.tolist() == [False] * 24 + [True] * 3


@torch.inference_mode()
def test_a_step_reads_its_whole_context(layers: RandomLayers) -> None:
    """The rows' tokens are all one token, so only their keys and values tell them apart."""
    step = layers.decode([None] * 4)
    assert step.positions.tolist() == [19] * 4
    out = layers.forward(step)()
    assert (out[1:] - out[:-1]).abs().amax(1).min() > 1e-4
    bare = layers.forward(replace(step, attention=NoAttention(step.attention)))()
    assert torch.equal(bare[1:], bare[:-1])


@torch.inference_mode()
def test_lora_that_does_nothing_is_not_timed(layers: RandomLayers) -> None:
    backbone = layers.decode([None] * 4)
    layers.check(layers.decode([0, 1, 1, 2]), backbone)
    with pytest.raises(ArithmeticError, match="LoRA left some of 4 rows unchanged"):
        layers.check(layers.decode([0, None, 1, 1]), backbone)
