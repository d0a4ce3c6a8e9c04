"""The hints of a worker: beginnings that became known or were found, and no more than a report holds."""

from dataclasses import dataclass, field

from punica_serve.paging.prefix_cache import MAX_HINTS_TOLD, PrefixCache
from punica_serve.paging.prefix_hash import PrefixHash, hints_of, prefix_hash
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
    assert len(hints) == 3 and cache.take_hints() == hints
    assert cache.take_hints() == ()
    assert _run(cache, pool, (*tokens[:17], 90, 91)) == 16
    assert cache.take_hints() == hints


def test_a_report_has_the_newest_of_many() -> None:
    pool = SharedPagePool(400)
    cache = PrefixCache(pool, 4)
    for number in range(100):
        _run(cache, pool, (number, 1, 2, 3, 4))
    newest = (99, 1, 2, 3, 4)
    hints = cache.take_hints()
    assert len(hints) == MAX_HINTS_TOLD
    assert hints[-1:] == hints_of(_request(newest), SETTINGS, 4, newest)
