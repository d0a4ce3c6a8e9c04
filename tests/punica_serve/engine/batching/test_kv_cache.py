import gc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from device_waits import waits_are_errors
from punica_serve.base_model.model_config import ModelConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.batching.kv_cache import KvCache, make_kv_cache, pages_within
from punica_serve.errors import ConfigError

CPU = torch.device("cpu")


def _cache(model: ModelConfig, num_pages: int = 3) -> KvCache:
    return KvCache(model, num_pages=num_pages, page_size=4, dtype=torch.float32, device=CPU)


def test_the_accounting_has_all_pages_of_the_pool(tiny_model: ModelConfig) -> None:
    cache = _cache(tiny_model)
    assert cache.pool.shape[0] == 3
    assert sorted(cache.allocate(3)) == [0, 1, 2] and cache.pages.num_free == 0


def test_a_cpus_pages_come_without_an_earlier_owners_nan(tiny_model: ModelConfig) -> None:
    cache = _cache(tiny_model)
    cache.pool.fill_(float("nan"))
    (page,) = cache.allocate(1)
    assert not cache.pool[page].any()


@pytest.mark.parametrize(("used", "pages"), [(0, 90), (50, 40), (51, 39), (90, 0), (91, -1), (100, -10)])
def test_all_use_stays_within_the_share(used: int, pages: int) -> None:
    """The engine may use 900 of 1000 bytes."""
    found = pages_within(free_bytes=1000 - 10 * used, total_bytes=1000, share=0.9, page_bytes=10)
    assert found == pages


def test_a_cpu_without_a_setting_has_the_default_number_of_pages(tiny_model: ModelConfig) -> None:
    assert make_kv_cache(EngineConfig(model=Path("m")), tiny_model, torch.float32, CPU).pages.num_pages == 1024


def test_a_cpus_own_number_of_pages_is_the_one_to_lower(tiny_model: ModelConfig) -> None:
    config = EngineConfig(model=Path("m"), page_size=1 << 30)
    with pytest.raises(ConfigError, match=r"^`engine\.num_kv_pages` of 1024 does not fit cpu: .*; lower it( to \d+)?$"):
        make_kv_cache(config, tiny_model, torch.float32, CPU)


def test_a_device_without_room_for_one_request_is_refused(
    tiny_model: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page takes 4 KiB here, so 16 of them hold a context of 256."""
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr("punica_serve.engine.batching.kv_cache.total_bytes", lambda _: 1 << 20)
    config = EngineConfig(model=Path("m"), device_memory_share=0.5)
    monkeypatch.setattr("punica_serve.engine.batching.kv_cache.free_bytes", lambda _: (1 << 19) + 15 * 4096)
    monkeypatch.setattr("punica_serve.engine.memory.device_memory.free_bytes", lambda _: 0)
    with pytest.raises(
        ConfigError, match=r"of 256 tokens takes .* cuda has .* lower `engine\.max_context` to 240 "
    ) as caught:
        make_kv_cache(config, tiny_model, torch.float32, gpu)
    assert caught.value.param == "engine.max_context"
    monkeypatch.setattr("punica_serve.engine.batching.kv_cache.free_bytes", lambda _: 1 << 18)
    with pytest.raises(ConfigError, match=r"leaves 0\.0 GiB; lower `engine\.num_lora_pages`, or raise"):
        make_kv_cache(config, tiny_model, torch.float32, gpu)  # no context is short enough
    monkeypatch.setattr("punica_serve.engine.batching.kv_cache.free_bytes", lambda _: (1 << 19) + 16 * 4096)
    monkeypatch.setattr(
        "punica_serve.engine.batching.kv_cache.KvCache", lambda *_, num_pages, **__: _cache(tiny_model, num_pages)
    )
    assert make_kv_cache(config, tiny_model, torch.float32, gpu).pages.num_pages == 16
    longer = replace(tiny_model, max_position_embeddings=257)
    with pytest.raises(ConfigError, match="of 257 tokens"):
        make_kv_cache(config, longer, torch.float32, gpu)


@pytest.mark.gpu
def test_a_gpus_cache_takes_its_share_and_allocating_touches_nothing(tiny_model: ModelConfig) -> None:
    gpu = torch.device("cuda", 0)
    gc.collect()  # engines of other tests, which may have taken nearly all
    torch.cuda.empty_cache()
    config = EngineConfig(model=Path("m"), device_memory_share=0.5, page_size=4096)
    cache = make_kv_cache(config, tiny_model, torch.bfloat16, gpu)
    free, total = torch.cuda.mem_get_info(gpu)
    assert (total - free) / total == pytest.approx(0.5, abs=0.01)
    cache.pool[:8].fill_(1)
    with waits_are_errors():
        pages = cache.allocate(8)
    assert cache.pool[pages].all()
