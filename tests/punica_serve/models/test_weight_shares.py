"""The weights of all ranks together are those of the whole model, for groups of any size."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.model_spec import Projection
from punica_serve.base_model.rank import Rank
from punica_serve.models.model_weights import ModelWeights, dummy_weights, load_weights, weights_num_bytes
from tiny_config import tiny_config

CPU = torch.device("cpu")


def shares(model: ModelConfig, size: int) -> list[ModelConfig]:
    return [model.shard(Rank(index, size)) for index in range(size)]


def check(whole: ModelWeights, parts: list[ModelWeights], models: list[ModelConfig]) -> None:
    assert torch.equal(torch.cat([part.embedding for part in parts]), whole.embedding)
    assert torch.equal(torch.cat([part.lm_head for part in parts]), whole.lm_head)
    for part, model in zip(parts, models, strict=True):
        assert torch.equal(part.norm, whole.norm)
        for own, layer in zip(part.layers, whole.layers, strict=True):
            for name, norm in own.norms.items():
                assert torch.equal(norm, layer.norms[name])
            for group in model.spec.groups:
                split = [projection.out_features for projection in model.whole.spec.group(group.name).projections]
                for kind, kind_of_whole in ((own.linears, layer.linears), (own.biases, layer.biases)):
                    if group.name in kind:
                        modules = kind_of_whole[group.name].split(split)
                        expected = [cut(*pair) for pair in zip(modules, group.projections, strict=True)]
                        assert torch.equal(kind[group.name], torch.cat(expected))


def cut(module: Tensor, projection: Projection) -> Tensor:
    """The share of a whole module's matrix or bias, chosen one output at a time."""
    rows = module[[row for part in projection.outputs for row in part]]
    return rows if rows.dim() == 1 else rows[:, list(projection.inputs)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "phi3", "gemma3_text"])
def test_each_rank_reads_its_share_of_the_files(make_model: Callable[..., Path], model_type: str, size: int) -> None:
    folder = make_model(model_type)
    model = read_model_config(folder)
    models = shares(model, size)
    parts = [load_weights(folder, share, torch.float32, CPU) for share in models]
    check(load_weights(folder, model, torch.float32, CPU), parts, models)


@pytest.mark.parametrize("changes", [{"qkv_bias": True}, {"fused_projections": True}])
def test_dummy_weights_of_all_sizes_are_one_model(changes: dict[str, bool]) -> None:
    model = tiny_config(**changes)
    for size in (2, 4):
        models = shares(model, size)
        parts = [dummy_weights(share, torch.float32, CPU) for share in models]
        check(dummy_weights(model, torch.float32, CPU), parts, models)


def test_the_bytes_of_a_rank_are_told() -> None:
    share = tiny_config().shard(Rank(0, 2))
    weights = dummy_weights(share, torch.bfloat16, CPU)
    tensors = [weights.embedding, weights.lm_head, weights.norm]
    for layer in weights.layers:
        tensors += [*layer.norms.values(), *layer.linears.values()]
    assert weights_num_bytes(share, torch.bfloat16) == sum(tensor.nbytes for tensor in tensors)
