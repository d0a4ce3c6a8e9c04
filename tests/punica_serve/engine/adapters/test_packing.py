"""Packed pages against the low-rank update they stand for."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from punica_serve.adapters.adapter import Adapter
from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.lora_layout import LORA_GROUPS
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.packing import PackedAdapter, packed_memory, packed_num_bytes, packed_views
from punica_serve.errors import AdapterRejected


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
    adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
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
    adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
    exact = _pack(adapter, tiny_model, torch.float32)
    rounded = _pack(adapter, tiny_model, torch.bfloat16)
    for group, pages in rounded.groups.items():
        assert torch.equal(pages.a, exact.groups[group].a.bfloat16())
        assert torch.equal(pages.b, exact.groups[group].b.bfloat16())


@pytest.mark.parametrize("source", ["F32", "F16"])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 1, 2])
def test_layers_in_any_order_at_any_address(
    tiny_model: ModelConfig, tmp_path: Path, source: Literal["F32", "F16"], target: torch.dtype, shift: int
) -> None:
    """Twelve layers lie in the file as 0, 1, 10, 11, 2; a header of odd length moves tensors off their alignment."""
    model = replace(tiny_model, num_hidden_layers=12)
    write_random_adapter(tmp_path, model, rank=12, seed=3, lora_alpha=5, dtype=source)
    path = tmp_path / "adapter_model.safetensors"
    content = path.read_bytes()
    header = content[8 : 8 + int.from_bytes(content[:8], "little")] + shift * b" "
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + len(header) - shift :])
    adapter = load_adapter(read_adapter(tmp_path, model), model)
    assert 7 < len(adapter.layout.runs) < 7 * 12
    packed = _pack(adapter, model, target)
    for (layer, module), pair in adapter.pairs.items():
        group = next(group for group, modules in LORA_GROUPS.items() if module in modules)
        number = LORA_GROUPS[group].index(module)
        outs = [model.linear_shapes[module][0] for module in LORA_GROUPS[group]]
        a = packed.groups[group].a[:, layer, number].flatten(0, 1)
        b = packed.groups[group].b[:, layer].flatten(0, 1).split(outs, dim=1)[number]
        assert torch.equal(a[:12], torch.from_numpy(pair.a.float32()).to(target)) and not a[12:].any()
        scaled = torch.from_numpy(pair.b.float32()) * pair.scaling
        assert torch.equal(b[:12], scaled.T.to(target)) and not b[12:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_refused(tiny_model: ModelConfig, tmp_path: Path, dtype: torch.dtype, bad: float) -> None:
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=0, lora_alpha=16)
    adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
    for layer, module, side in ((1, "down_proj", "a"), (0, "up_proj", "b")):
        array = getattr(adapter.pairs[layer, module], side).array
        kept = array[3, 5]
        array[3, 5] = bad  # a view of the file
        with pytest.raises(AdapterRejected, match=f"{module}.*too large for {dtype}"):
            _pack(adapter, tiny_model, dtype)
        array[3, 5] = kept
    _pack(adapter, tiny_model, dtype)


def test_what_grows_too_large_is_refused(tiny_model: ModelConfig, tmp_path: Path) -> None:
    """Values grow by the scaling, or are stored in a wider format. Others were checked at registration."""
    for alpha, dtype in ((16, torch.float16), (8, torch.float16), (16, torch.float32)):
        write_random_adapter(tmp_path, tiny_model, rank=8, seed=0, lora_alpha=alpha, dtype="F16", scale=25_000.0)
        adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
        largest = max(np.abs(pair.b.float32()).max() for pair in adapter.pairs.values())
        assert 32_760 < largest < 65_504
        if (alpha, dtype) == (16, torch.float16):
            with pytest.raises(AdapterRejected, match=r"too large for torch\.float16"):
                _pack(adapter, tiny_model, dtype)
        else:
            packed = _pack(adapter, tiny_model, dtype)
            assert all(pages.b.isfinite().all() for pages in packed.groups.values())
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=0, scale=1e5)
    with pytest.raises(AdapterRejected, match=r"too large for torch\.float16"):
        _pack(load_adapter(read_adapter(tmp_path, tiny_model), tiny_model), tiny_model, torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_modules_of_one_group_may_differ_in_scaling(
    tiny_model: ModelConfig, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Whether the values stay as they are stored, in float32, or not."""
    write_random_adapter(tmp_path, tiny_model, rank=8, seed=4)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "alpha_pattern": {"k_proj": 24, "1.mlp.up_proj": 4}}))
    adapter = load_adapter(read_adapter(tmp_path, tiny_model), tiny_model)
    packed = _pack(adapter, tiny_model, dtype)
    for (layer, module), scaling in (
        ((1, "k_proj"), 3.0),
        ((1, "q_proj"), 1.0),
        ((0, "up_proj"), 1.0),
        ((1, "up_proj"), 0.5),
    ):
        pair = adapter.pairs[layer, module]
        assert pair.scaling == scaling
        group = next(group for group, modules in LORA_GROUPS.items() if module in modules)
        start = sum(tiny_model.linear_shapes[m][0] for m in LORA_GROUPS[group][: LORA_GROUPS[group].index(module)])
        b = packed.groups[group].b[0, layer, :, start : start + pair.b.shape[0]]
        assert torch.equal(b, (torch.from_numpy(pair.b.array) * scaling).T.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_pages_are_views_of_one_memory(tiny_model: ModelConfig, dtype: torch.dtype) -> None:
    ranks = {"q_proj": 20, "down_proj": 3}
    num_bytes = packed_num_bytes(ranks, tiny_model, dtype)
    memory = torch.zeros(num_bytes + 512, dtype=torch.uint8)
    packed = packed_views(memory[256:-256], ranks, tiny_model, dtype)
    parts = [part for group in packed.groups.values() for part in (group.a, group.b)]
    for number, part in enumerate(parts, 1):
        assert part.is_contiguous() and not part.any(), "they don't overlap"
        part.fill_(number)
    whole = packed_memory(packed, num_bytes)
    assert whole.data_ptr() == memory.data_ptr() + 256 and len(whole) == num_bytes
    assert memory[256:-256].count_nonzero() == memory.count_nonzero() > 0
    assert len(parts) == 4 and packed.groups["qkv"].a.shape[:2] == (3, tiny_model.num_hidden_layers)
