import math
from dataclasses import replace
from pathlib import Path

import pytest

from blank_weights import write_blank_weights
from punica_serve.base_model.checkpoint import checked_weights, tensor_shapes
from punica_serve.base_model.memory_budget import num_weights
from punica_serve.base_model.rank import Rank
from punica_serve.errors import ModelRejected
from punica_serve.shapes import SHAPE_NAMES, shape_of
from tiny_config import tiny_config

TINY = tiny_config()
UP, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"


@pytest.mark.parametrize("name", SHAPE_NAMES)
def test_the_tensors_of_a_shape_are_all_its_weights(name: str) -> None:
    assert sum(map(math.prod, tensor_shapes(shape_of(name)).values())) == num_weights(shape_of(name))


def test_a_checkpoint_is_whole_for_every_rank(tmp_path: Path) -> None:
    write_blank_weights(tmp_path, tensor_shapes(TINY))
    share = TINY.shard(Rank(1, 2))
    assert tensor_shapes(share) == tensor_shapes(TINY)
    assert checked_weights(tmp_path, share)[0].keys() == tensor_shapes(TINY).keys()


def test_a_head_of_its_own_unties_a_config_of_a_rank_too(tmp_path: Path) -> None:
    write_blank_weights(tmp_path, tensor_shapes(TINY))
    share = replace(TINY, tie_word_embeddings=True).shard(Rank(1, 2))
    assert not checked_weights(tmp_path, share)[1].tie_word_embeddings


@pytest.mark.parametrize(
    ("lost", "added", "message", "param"),
    [
        (UP, {}, "weights in .* lack tensor `model.layers.1.mlp.up_proj.weight`, .*; take weights and config.json", UP),
        (
            "layers.1",
            {},
            r"lack 9 tensors: `model.layers.1.input_layernorm.weight`, `model.*`, `model.*` \.\.\., which config.json",
            "model.layers.1.input_layernorm.weight",
        ),
        ("nothing", {BIAS: (3,)}, rf"hold tensor `{BIAS}`, which the model does not read; take", BIAS),
        ("nothing", {"a": (3,), "b": (3,)}, "hold 2 tensors: `a`, `b`, which the model does not read; take", "a"),
        (
            "nothing",
            {"model.norm.weight": (3,)},
            r"`model.norm.weight` in .* has shape \[3\], config.json says \[24\]; take",
            "model.norm.weight",
        ),
    ],
)
def test_tensors_that_config_json_does_not_tell_are_named(
    tmp_path: Path, lost: str, added: dict[str, tuple[int, ...]], message: str, param: str
) -> None:
    kept = {name: shape for name, shape in tensor_shapes(TINY).items() if lost not in name}
    write_blank_weights(tmp_path, kept | added)
    with pytest.raises(ModelRejected, match=message) as caught:
        checked_weights(tmp_path, TINY)
    assert caught.value.param == param


@pytest.mark.parametrize("dtype", ["I8", "I64", "F8_E4M3", "F64"])
def test_a_tensor_of_another_type_is_named(tmp_path: Path, dtype: str) -> None:
    write_blank_weights(tmp_path, tensor_shapes(TINY), {UP: dtype})
    with pytest.raises(ModelRejected, match=f"tensor `{UP}` is of {dtype}; only F32, F16, BF16 are") as caught:
        checked_weights(tmp_path, TINY)
    assert caught.value.param == UP
