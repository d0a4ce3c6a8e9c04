"""The arithmetic of memory against the tensors themselves."""

import pytest
import torch

from punica_serve.base_model.lora_layout import USUAL_LIMITS, LoraLimits
from punica_serve.base_model.memory_budget import (
    MemoryPlan,
    adapter_num_bytes,
    auto_lora_pages,
    kv_bytes_per_token,
    lora_pages_within,
    num_weights,
    pool_num_bytes,
    undivided_pool_bytes,
)
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import Rank
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.adapters.packing import packed_num_bytes
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.models.model_weights import weights_num_bytes
from punica_serve.shapes import SHAPE_NAMES, shape_of
from tiny_config import tiny_config

#: All that can be served.
ALL = LoraLimits(256, vocabulary=True)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "model",
    [*map(shape_of, SHAPE_NAMES), tiny_config(fused_projections=True), tiny_config(qkv_bias=True, qk_norm=True)],
    ids=[*SHAPE_NAMES, "fused", "biased"],
)
def test_weights_are_those_of_the_model(model: ModelConfig) -> None:
    in_float32 = model.spec.norm_offset  # Gemma's norms, on the device
    extra = 2 * sum(norm.size for norm in model.spec.layer_norms) * model.num_hidden_layers + 2 * model.hidden_size
    expected = weights_num_bytes(model, torch.bfloat16) - (extra if in_float32 else 0)
    assert 2 * num_weights(model) == expected


def test_pools_and_caches_take_what_is_said() -> None:
    model = tiny_config()
    for limits in (USUAL_LIMITS, ALL):
        pool = LoraPool(model, num_pages=40, dtype=torch.float16, device=CPU, limits=limits)
        taken = sum(group.a.nbytes + group.b.nbytes for group in pool.groups.values())
        assert pool_num_bytes(model, 40, 2, limits) == taken
    cache = KvCache(model, num_pages=3, page_size=4, dtype=torch.float16, device=CPU)
    assert 12 * kv_bytes_per_token(model, 2) == cache.pool.nbytes
    ranks = dict.fromkeys(model.linear_shapes, 20)
    assert adapter_num_bytes(model, 20, 2) <= packed_num_bytes(ranks, model, torch.float16)


def test_auto_has_room_for_a_step_of_adapters_and_for_one_of_the_highest_rank() -> None:
    assert auto_lora_pages(32, 16, ALL) == 64
    assert auto_lora_pages(4, 16, ALL) == 32
    assert auto_lora_pages(4, 16, USUAL_LIMITS) == 16
    assert auto_lora_pages(8, 64, ALL) == 64


def test_auto_leaves_most_to_the_kv_cache() -> None:
    model = shape_of("llama-2-7b")
    plan = MemoryPlan.of(
        model,
        num_gpu_bytes=24 << 30,
        share=0.9,
        num_value_bytes=2,
        num_lora_pages=None,
        max_batch_size=64,
        rank=32,
        limits=ALL,
    )
    assert 32 <= plan.num_lora_pages < auto_lora_pages(64, 32, ALL)
    assert plan.lora_bytes <= (plan.lora_bytes + plan.kv_bytes) / 4
    assert lora_pages_within(model, 64, 0, 2, ALL) == 32, "one adapter of the highest rank is always there"


@pytest.mark.parametrize("model", [tiny_config(), tiny_config(fused_projections=True, qkv_bias=True)])
def test_ranks_divide_a_part_of_lora_and_have_the_rest_whole(model: ModelConfig) -> None:
    _check_shares(model, model.shard(Rank(1, 2)), undivided_pool_bytes(model, 40, 2, ALL))


def test_ranks_that_divide_a_too_have_less_whole() -> None:
    model = tiny_config()
    share = model.shard(Rank(1, 2), divides_lora=True)
    whole = undivided_pool_bytes(share, 40, 2, ALL)
    assert whole < undivided_pool_bytes(model, 40, 2, ALL)
    _check_shares(model, share, whole)


def _check_shares(model: ModelConfig, share: ModelConfig, whole: int) -> None:
    """``whole``: bytes of the pool that each rank has."""
    divided = pool_num_bytes(model, 40, 2, ALL) - whole
    assert undivided_pool_bytes(share, 40, 2, ALL) == whole
    assert 2 * (pool_num_bytes(share, 40, 2, ALL) - whole) == divided
    assert 2 * num_weights(share) == weights_num_bytes(share, torch.bfloat16)
