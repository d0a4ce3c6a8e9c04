import torch

from punica_serve.engine.host_cache import HostCache
from punica_serve.engine.packing import PackedAdapter, PackedGroup


def _adapter(num_bytes: int) -> PackedAdapter:
    adapter = PackedAdapter({"o": PackedGroup(torch.zeros(num_bytes, dtype=torch.uint8), torch.zeros(0))})
    assert adapter.num_bytes == num_bytes
    return adapter


def test_least_recently_used_leave_when_the_budget_is_spent() -> None:
    cache = HostCache(budget_bytes=100)
    for digest in "ab":
        cache.put(digest, _adapter(40))
    assert cache.get("a") is not None
    cache.put("c", _adapter(40))
    assert (cache.get("a") is not None, cache.get("b"), cache.get("c") is not None) == (True, None, True)
    assert cache.used_bytes == 80


def test_an_adapter_beyond_the_budget_is_not_kept_and_displaces_nobody() -> None:
    cache = HostCache(budget_bytes=100)
    cache.put("small", _adapter(60))
    cache.put("large", _adapter(101))
    assert cache.get("large") is None
    assert cache.get("small") is not None


def test_the_same_digest_counts_once() -> None:
    cache = HostCache(budget_bytes=100)
    cache.put("a", _adapter(60))
    cache.put("a", _adapter(60))
    assert cache.used_bytes == 60
