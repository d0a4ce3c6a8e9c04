"""The part of a prefix that is found, behind windows too; and the hints that a worker tells of it."""

from dataclasses import dataclass, field

import pytest

from punica_serve.paging import prefix_hash as prefix_hash_module
from punica_serve.paging.prefix_cache import PrefixCache
from punica_serve.paging.prefix_hash import BLOCK_PAGES, PrefixHash, hints_of, prefix_hash
from punica_serve.paging.shared_pages import SharedPagePool
from punica_serve.protocol import PrefixCaching, Request, SamplingParams

SETTINGS = PrefixCaching("base")


@dataclass
class _Holder:
    known_ids: tuple[int, ...]
    prefix_hash: PrefixHash | None
    pages: list[int] = field(default_factory=list)
    num_cached: int = 0
    num_released: int = 0
    num_named: int = 0
    num_found: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.known_ids)


def _request(tokens: tuple[int, ...]) -> Request:
    return Request("r", 0, tokens, SamplingParams())


def _run(cache: PrefixCache, pool: SharedPagePool, tokens: tuple[int, ...]) -> int:
    """Starts, computes and ends a request; how many tokens it has found."""
    holder = _Holder(tokens, prefix_hash(_request(tokens), SETTINGS, 4))
    cache.admit(holder)
    holder.pages += pool.allocate(-(-len(tokens) // 4) - len(holder.pages))
    holder.num_cached = len(tokens)
    cache.release(holder)
    pool.check_invariants([])
    return holder.num_found


def test_beginnings_are_told_when_they_become_known_and_when_they_are_found() -> None:
    pool = SharedPagePool(32)
    cache, tokens = PrefixCache(pool, 4), tuple(range(1, 23))
    assert _run(cache, pool, tokens) == 0
    hints = hints_of(_request(tokens), SETTINGS, 4, tokens)
    assert len(hints) == 3 and cache.hints.take() == hints
    assert cache.hints.take() == ()
    assert _run(cache, pool, (*tokens[:17], 90, 91)) == 16
    assert cache.hints.take() == hints


def test_a_long_prompt_is_hashed_no_further_than_others_have_computed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step loop waits for it: 32,000 tokens take some milliseconds. The rest follows as pages are computed."""
    pool = SharedPagePool(8 * BLOCK_PAGES)
    cache, tokens = PrefixCache(pool, 4), tuple(range(4 * 8 * BLOCK_PAGES))
    num_known = BLOCK_PAGES + 3
    _run(cache, pool, tokens[: 4 * num_known + 1])
    hashed, page_keys = [], prefix_hash_module._page_keys

    def count(begin: bytes, block: bytes, page_bytes: int) -> list[bytes]:
        keys = page_keys(begin, block, page_bytes)
        hashed.extend(keys)
        return keys

    monkeypatch.setattr(prefix_hash_module, "_page_keys", count)
    holder = _Holder(tokens, prefix_hash(_request(tokens), SETTINGS, 4))
    cache.admit(holder)
    assert holder.num_found == 4 * num_known
    assert len(hashed) <= 2 * BLOCK_PAGES


@pytest.mark.parametrize(("keep", "num_known"), [(True, 10), (False, 0)])
def test_pages_given_back_behind_a_window_are_found_until_their_request_turns_out_bad(
    keep: bool, num_known: int
) -> None:
    pool, tokens = SharedPagePool(32), tuple(range(1, 41))
    cache, holder = PrefixCache(pool, 4, window=8), _Holder(tokens, prefix_hash(_request(tokens), SETTINGS, 4))
    holder.pages, holder.num_cached = pool.allocate(10), 40
    cache.give_back(holder)
    assert (holder.num_released, pool.num_known, pool.num_free) == (8, 10, 32 - 2)
    cache.release(holder, keep=keep)
    assert (pool.num_known, pool.num_free) == (num_known, 32)
    pool.check_invariants([])


def test_under_a_window_a_prefix_is_found_by_the_pages_that_its_next_row_sees() -> None:
    """The row behind 36 tokens sees those from 29 on: pages 7 and 8 are enough, and either alone is not."""
    pool, tokens = SharedPagePool(32), tuple(range(1, 41))
    cache = PrefixCache(pool, 4, window=8)
    assert _run(cache, pool, tokens) == 0
    keys = prefix_hash(_request(tokens), SETTINGS, 4).keys(tokens, 9)
    pool.forget_keys(keys[:7])
    assert len(cache.hints.take()) == 4
    holder = _Holder(tokens, prefix_hash(_request(tokens), SETTINGS, 4))
    cache.admit(holder)
    assert (holder.num_cached, holder.num_released, len(holder.pages)) == (36, 7, 9)
    assert len(set(holder.pages[7:])) == 2
    assert cache.hints.take() == hints_of(_request(tokens), SETTINGS, 4, tokens)[3:], "that of eight pages alone"
    pool.check_invariants(holder.pages[7:])
    cache.release(holder)
    pool.check_invariants([])
    pool.forget_keys(keys[8:9])
    holder = _Holder(tokens, prefix_hash(_request(tokens), SETTINGS, 4))
    cache.admit(holder)
    assert (holder.num_cached, holder.pages) == (0, [])
