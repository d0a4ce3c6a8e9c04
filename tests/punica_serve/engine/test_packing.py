"""Packed pages against the low-rank update they stand for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.engine.packing import PackedAdapter, pack_adapter, packed_num_bytes
from punica_serve.lora_layout import LORA_GROUPS
from punica_serve.model_config import ModelConfig


def _pack(adapter: Adapter, model: ModelConfig, dtype: torch.dtype) -> PackedAdapter:
    """Into memory that another adapter had."""
    memory = torch.full((packed_num_bytes(adapter.ref.ranks, model, dtype),), 0xFF, dtype=torch.uint8)
    return pack_adapter(adapter, model, dtype, memory)


@pytest.mark.parametrize("rank", [1, 8, 13])
@pytest.mark.parametrize("modules", [("q_proj", "v_proj"), ("gate_proj",), ("o_proj", "down_proj", "up_proj")])
def test_pages_hold_the_scaled_update_and_zeros(
    tiny_model: ModelConfig, tmp_path: Path, rank: int, modules: tuple[str, ...]
) -> None:
    write_random_adapter(tmp_path, tiny_model, rank=rank, seed=1, target_modules=modules, lora_alpha=5)
    adapter = read_adapter(tmp_path, tiny_model)
    packed = _pack(adapter, tiny_model, torch.float32)
    assert set(packed.groups) == {group for group, members in LORA_GROUPS.items() if set(members) & set(modules)}
    for group, pages in packed.groups.items():
        assert pages.a.shape[0] == -(-rank // 8), "as many pages as rank rows ask for"
        for layer in range(tiny_model.num_hidden_layers):
            start = 0
            for number, module in enumerate(LORA_GROUPS[group]):
                end = start + tiny_model.linear_shapes[module][0]
                a = pages.a[:, layer, number].flatten(0, 1)
                b = pages.b[:, layer, :, start:end].flatten(0, 1)
                pair = adapter.pairs.get((layer, module))
                if pair is None:
                    assert not a.any() and not b.any()
                else:
                    expected = pair.scaling * pair.b.float32() @ pair.a.float32()
                    np.testing.assert_allclose((a.T @ b).T.numpy(), expected, rtol=1e-4, atol=1e-5)
                start = end


def test_half_precision_rounds_once(tiny_model: ModelConfig, tmp_path: Path) -> None:
    write_random_adapter(tmp_path, tiny_model, rank=4, seed=2, lora_alpha=3)
    adapter = read_adapter(tmp_path, tiny_model)
    exact = _pack(adapter, tiny_model, torch.float32)
    rounded = _pack(adapter, tiny_model, torch.bfloat16)
    for group, pages in rounded.groups.items():
        assert torch.equal(pages.a, exact.groups[group].a.bfloat16())
        assert torch.equal(pages.b, exact.groups[group].b.bfloat16())
