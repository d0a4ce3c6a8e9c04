"""The spec of a Llama layer: one order of projections for weights, LoRA pages and launches."""

import pytest

from punica_serve.base_model.lora_layout import LORA_GROUPS
from tiny_config import tiny_config

SPEC = tiny_config().spec


def test_groups_stack_their_projections_side_by_side() -> None:
    shapes = {group.name: (group.out_features, group.in_features, group.out_offsets) for group in SPEC.groups}
    assert shapes == {
        "qkv": (64, 24, (0, 32, 48, 64)),
        "o": (24, 32, (0, 24)),
        "gate_up": (80, 24, (0, 40, 80)),
        "down": (24, 40, (0, 24)),
    }


def test_only_what_a_norm_or_the_rotary_embedding_reads_may_be_partial_sums() -> None:
    assert [group.name for group in SPEC.groups if group.split_k] == ["qkv", "o", "down"]


def test_every_module_is_found_in_its_slice() -> None:
    for module, (out_features, in_features) in SPEC.linear_shapes.items():
        group, number = SPEC.find(module)
        assert LORA_GROUPS[group.name][number] == module
        assert group is SPEC.group(group.name) and group.in_features == in_features
        assert group.out_offsets[number + 1] - group.out_offsets[number] == out_features


def test_a_module_that_the_model_lacks_is_not_found() -> None:
    with pytest.raises(KeyError):
        SPEC.find("qkv_proj")
