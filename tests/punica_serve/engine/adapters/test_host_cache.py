import pytest
from torch import Tensor

from punica_serve.engine.adapters.host_cache import HostCache, HostCopy
from punica_serve.engine.adapters.packing import PackedAdapter, PackedGroup
from punica_serve.engine.memory.pinned_memory import HostMemory
from punica_serve.errors import StoreUnavailable

PAGE = 4096


def _make(cache: HostCache, digest: str, num_pages: int) -> HostCopy:
    def pack(memory: Tensor) -> PackedAdapter:
        memory.fill_(ord(digest))
        return PackedAdapter({"o": PackedGroup(memory, memory)})

    return cache.make(digest, num_pages * PAGE, pack)


def _holds(cache: HostCache, *digests: str) -> bool:
    """Whether these are there, with their own bytes in memory of their own."""
    copies = [cache.get(digest) for digest in digests]
    for digest, copy in zip(digests, copies, strict=True):
        if copy is None or not copy.packed.groups["o"].a.eq(ord(digest)).all():
            return False
        cache.release(copy)
    return True


@pytest.fixture
def cache() -> HostCache:
    return HostCache(HostMemory(10 * PAGE))


def test_least_recently_used_leave_when_the_budget_is_spent(cache: HostCache) -> None:
    for digest in "ab":
        cache.release(_make(cache, digest, 4))
    assert _holds(cache, "a")
    cache.release(_make(cache, "c", 4))
    assert _holds(cache, "a", "c") and "b" not in cache
    assert cache.used_bytes == 8 * PAGE


def test_one_that_is_held_stays_and_the_next_one_goes_without_a_place(cache: HostCache) -> None:
    held = [_make(cache, digest, 5) for digest in "ab"]
    homeless = _make(cache, "c", 1)
    assert homeless.start is None and homeless.packed.groups["o"].a.eq(ord("c")).all()
    cache.release(homeless)
    assert "c" not in cache and _holds(cache, "a", "b")
    cache.release(held[1])
    cache.release(_make(cache, "d", 5))
    assert _holds(cache, "a", "d") and "b" not in cache


def test_an_adapter_beyond_the_budget_is_not_cached_and_evicts_nothing(cache: HostCache) -> None:
    cache.release(_make(cache, "s", 6))
    cache.release(_make(cache, "l", 11))
    assert "l" not in cache and _holds(cache, "s")


def test_without_a_budget_nothing_is_kept() -> None:
    cache = HostCache(HostMemory(0))
    cache.release(_make(cache, "a", 1))
    assert "a" not in cache and cache.used_bytes == 0


def test_adapters_of_one_size_replace_each_other_to_the_last_byte() -> None:
    cache = HostCache(HostMemory(12 * PAGE))
    for digest in "abcdefgh":
        cache.release(_make(cache, digest, 3))
    assert _holds(cache, "e", "f", "g", "h") and cache.used_bytes == 12 * PAGE


def test_what_cannot_be_packed_takes_no_room(cache: HostCache) -> None:
    def fail(_: Tensor) -> PackedAdapter:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.make("a", 10 * PAGE, fail)
    assert cache.used_bytes == 0 and "a" not in cache


def test_a_pinned_adapter_stays_however_long_it_is_unused(cache: HostCache) -> None:
    assert cache.pin("a", 4 * PAGE), "before it is here"
    for digest in "abcde":
        cache.release(_make(cache, digest, 4))
    assert _holds(cache, "a", "e") and cache.used_bytes == 8 * PAGE
    cache.unpin("a")
    for digest in "fg":
        cache.release(_make(cache, digest, 4))
    assert "a" not in cache


def test_pins_leave_half_of_the_budget_to_others(cache: HostCache) -> None:
    assert cache.pin("a", 4 * PAGE) and not cache.pin("b", 2 * PAGE)
    assert cache.pin("a", 5 * PAGE), "its own old pin is not in the way"
    assert not cache.is_pinned("b")
    cache.evict("a")
    assert cache.pin("b", 2 * PAGE)


def test_evicting_gives_the_memory_back_once_nobody_holds_it(cache: HostCache) -> None:
    copy = _make(cache, "a", 4)
    cache.evict("a")
    assert cache.get("a") is None and cache.used_bytes == 4 * PAGE
    again = _make(cache, "a", 3)
    assert copy.packed.groups["o"].a.eq(ord("a")).all()
    cache.release(copy)
    cache.release(again)
    assert cache.used_bytes == 3 * PAGE and _holds(cache, "a")
    cache.evict("a")
    cache.evict("never seen")
    assert cache.used_bytes == 0


def test_changes_are_reported_once(cache: HostCache) -> None:
    assert cache.take_changes() == ((), ())
    for digest in "ba":
        cache.release(_make(cache, digest, 5))
    assert cache.take_changes() == (("a", "b"), ())
    assert cache.take_changes() == ((), ())
    cache.release(_make(cache, "c", 5))
    cache.evict("a")
    held = _make(cache, "d", 5)
    assert cache.take_changes() == (("c", "d"), ("a", "b"))
    cache.evict("d")
    assert cache.take_changes() == ((), ()), "its memory is still held"
    cache.release(held)
    assert cache.take_changes() == ((), ("d",)) and cache.digests == ("c",)


def test_digests_that_share_bytes_keep_them_here(cache: HostCache) -> None:
    cache.release(_make(cache, "a", 4))
    shared = cache.share("same", "a")
    assert shared.packed.groups["o"].a.eq(ord("a")).all() and cache.used_bytes == 5 * PAGE
    cache.release(shared)
    cache.evict("same")
    cache.release(_make(cache, "b", 6))
    assert _holds(cache, "a", "b") and "same" not in cache
    with pytest.raises(StoreUnavailable, match="whose bytes other shares is not in host memory"):
        cache.share("other", "gone")


def test_reserved_memory_is_an_adapters_or_given_back(cache: HostCache) -> None:
    def pack(memory: Tensor) -> PackedAdapter:
        return PackedAdapter({"o": PackedGroup(memory.fill_(ord("b")), memory)})

    room = cache.reserve(6 * PAGE)
    assert room is not None and len(room.memory) == 6 * PAGE and cache.used_bytes == 6 * PAGE
    assert cache.reserve(6 * PAGE) is None
    cache.give_back(room)
    cache.release(_make(cache, "a", 10))
    room = cache.reserve(10 * PAGE)
    assert room is not None and "a" not in cache
    copy = cache.make("b", 10 * PAGE, pack, room)
    assert copy.packed.groups["o"].a.data_ptr() == room.memory.data_ptr() and _holds(cache, "b")
    cache.release(copy)
    cache.evict("b")
    assert cache.used_bytes == 0


def test_reserved_memory_is_free_again_after_an_error(cache: HostCache) -> None:
    def fail(_: Tensor) -> PackedAdapter:
        raise ValueError("its files are wrong")

    room = cache.reserve(10 * PAGE)
    with pytest.raises(ValueError, match="wrong"):
        cache.make("a", 10 * PAGE, fail, room)
    assert cache.used_bytes == 0 and "a" not in cache


def test_only_a_few_are_evicted_for_reserved_memory(cache: HostCache) -> None:
    """The step loop reserves it. Other threads have more time, and evict the rest."""
    for digest in "abcdefghij":
        cache.release(_make(cache, digest, 1))
    assert cache.reserve(6 * PAGE) is None and len(cache.digests) == 6
    cache.release(_make(cache, "k", 6))
    assert _holds(cache, "g", "h", "i", "j", "k")
