"""The share of an adapter that ranks pack: B divided where outputs are divided, A where inputs are."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from punica_serve.adapters.folder import load_adapter, read_adapter
from punica_serve.adapters.random_adapter import write_random_adapter
from punica_serve.base_model.config_json import read_model_config
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.bench.step_floor import StepBytes
from punica_serve.engine.adapters.adapter_packer import pack_adapter
from punica_serve.engine.adapters.load_trace import LoadTrace
from punica_serve.engine.adapters.packed_file import PackedLayout
from punica_serve.engine.adapters.packed_store import PackedStore
from punica_serve.engine.adapters.packing import PackedAdapter, pack_share, packed_num_bytes
from punica_serve.engine.adapters.random_pages import pack_dummy
from punica_serve.protocol import AdapterRef
from punica_serve.shapes import shape_of
from punica_serve.store.packed_folder import PackedCache


def memory_for(ref: AdapterRef, model: ModelConfig, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((packed_num_bytes(ref.ranks, model, dtype),), 255, dtype=torch.uint8)


def assert_equal(packed: PackedAdapter, expected: PackedAdapter) -> None:
    assert packed.groups.keys() == expected.groups.keys()
    for name, pages in packed.groups.items():
        assert torch.equal(pages.a, expected.groups[name].a), name
        assert torch.equal(pages.b, expected.groups[name].b), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["llama", "phi3"])
@pytest.mark.parametrize("divides_lora", [False, True])
def test_a_rank_packs_its_share_of_the_files(
    make_model: Callable[..., Path], tmp_path: Path, model_type: str, dtype: torch.dtype, divides_lora: bool
) -> None:
    model = read_model_config(make_model(model_type))
    write_random_adapter(tmp_path / "a", model, rank=12, seed=3, target_modules=tuple(model.spec.lora_shapes))
    ref = read_adapter(tmp_path / "a", model)
    adapter = load_adapter(ref, model)
    whole = pack_adapter(adapter, model, dtype, memory_for(ref, model, dtype))
    for share in (model.shard(Rank(index, 2), divides_lora=divides_lora) for index in range(2)):
        packed = pack_adapter(adapter, share, dtype, memory_for(ref, share, dtype))
        assert_equal(packed, pack_share(memory_for(ref, share, dtype), whole, ref.ranks, share, dtype))
        for name, pages in packed.groups.items():
            group = share.spec.group(name)
            assert pages.a.shape[-1] == len(group.lora_inputs)
            assert pages.b.shape[-1] == group.out_features
            if divides_lora and name in ("qkv", "gate_up"):
                assert torch.equal(pages.a, whole.groups[name].a[..., list(group.lora_inputs)])
                continue
            undivided = (pages.b, whole.groups[name].b) if group.row_parallel else (pages.a, whole.groups[name].a)
            assert torch.equal(*undivided)


def test_a_dummy_adapter_is_the_same_in_groups_of_all_sizes(tiny_model: ModelConfig) -> None:
    ref = AdapterRef("dummy", "", 0, dict.fromkeys(tiny_model.linear_shapes, 4))
    dtype = torch.float32
    whole = pack_dummy(memory_for(ref, tiny_model, dtype), 7, ref.ranks, tiny_model, dtype)
    share = tiny_model.shard(Rank(1, 2))
    packed = pack_dummy(memory_for(ref, share, dtype), 7, ref.ranks, share, dtype)
    assert_equal(packed, pack_share(memory_for(ref, share, dtype), whole, ref.ranks, share, dtype))


def test_packed_files_of_ranks_and_of_group_sizes_are_not_mixed_up(tiny_model: ModelConfig) -> None:
    ranks = (Rank(0, 2), Rank(1, 2), Rank(0, 4), Rank(1, 4))
    shares = [tiny_model.shard(rank, divides_lora=divides) for rank in ranks for divides in (False, True)]
    assert len({PackedLayout.of(model, torch.bfloat16).name for model in (tiny_model, *shares)}) == 9


def test_a_rank_reads_more_than_an_even_share_of_an_adapter() -> None:
    model = shape_of("llama-2-70b")
    sizes = [StepBytes.of(model.shard(Rank(0, size)), torch.bfloat16, 16).adapter for size in (1, 2, 4, 8)]
    assert [round(size / 1e6) for size in sizes] == [414, 280, 214, 180]


def test_what_ranks_have_whole_of_a_divided_adapter_is_the_b_of_o_and_down() -> None:
    model = shape_of("llama-2-70b")
    shares = [model.shard(Rank(0, size), divides_lora=True) for size in (2, 4, 8)]
    sizes = [StepBytes.of(share, torch.bfloat16, 16).adapter for share in shares]
    whole, b_of_two = StepBytes.of(model, torch.bfloat16, 16).adapter, 2 * 8192 * 16 * 80 * 2
    assert sizes == [(whole - b_of_two) // size + b_of_two for size in (2, 4, 8)]
    assert [round(size / 1e6) for size in sizes] == [228, 135, 88]


def test_each_rank_keeps_its_packed_share_on_the_disk(tiny_model: ModelConfig, tmp_path: Path) -> None:
    write_random_adapter(tmp_path / "a", tiny_model, rank=8, seed=1)
    ref = read_adapter(tmp_path / "a", tiny_model)
    adapter, dtype = load_adapter(ref, tiny_model), torch.bfloat16
    shares = [tiny_model.shard(Rank(index, 2)) for index in range(2)]
    stores = [PackedStore(PackedCache(tmp_path / "cache", 1 << 24), share, dtype) for share in shares]
    try:
        for store, share in zip(stores, shares, strict=True):
            assert not store.has(ref)
            packed = pack_adapter(adapter, share, dtype, memory_for(ref, share, dtype))
            store.write(ref, packed)
            found = store.read(ref, memory_for(ref, share, dtype), LoadTrace(ref.digest))
            assert found is not None
            assert_equal(found, packed)
    finally:
        for store in stores:
            store.close()
