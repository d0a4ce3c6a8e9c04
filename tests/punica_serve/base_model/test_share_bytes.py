import pytest
import torch

from punica_serve.base_model.model_config import ModelConfig
from punica_serve.base_model.rank import SINGLE, Rank
from punica_serve.base_model.share_bytes import ShareBytes
from punica_serve.engine.adapters.lora_pool import LoraPool
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.models.model_weights import weights_num_bytes
from tiny_config import tiny_config

CPU = torch.device("cpu")
MODELS = {
    "llama": tiny_config(),
    "qwen": tiny_config(qkv_bias=True, qk_norm=True, tie_word_embeddings=True),
    "gemma": tiny_config(is_gemma=True),
    "phi": tiny_config(fused_projections=True),
}


@pytest.mark.parametrize("rank", [SINGLE, Rank(0, 2), Rank(3, 4)])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_bytes_of_a_share_are_those_that_the_engine_allocates(model: ModelConfig, rank: Rank) -> None:
    share = model.shard(rank)
    found = ShareBytes.of(share, 2, 3)
    pool = LoraPool(share, num_pages=3, dtype=torch.bfloat16, device=CPU)
    cache = KvCache(share, num_pages=2, page_size=4, dtype=torch.bfloat16, device=CPU)
    assert found.weights == weights_num_bytes(share, torch.bfloat16)
    assert found.lora_whole + found.lora_divided == sum(
        group.a.nbytes + group.b.nbytes for group in pool.groups.values()
    )
    assert 8 * found.kv_token == cache.pool.nbytes


def test_ranks_divide_a_part_of_lora_and_have_the_rest_whole() -> None:
    whole, half = (ShareBytes.of(tiny_config().shard(rank), 2, 8) for rank in (SINGLE, Rank(1, 2)))
    assert half.lora_whole == whole.lora_whole
    assert 2 * half.lora_divided == whole.lora_divided
