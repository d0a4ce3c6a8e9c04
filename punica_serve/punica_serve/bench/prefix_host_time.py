"""Host time of prefix caching: what known pages add to the accounting of a decode step, and of a request."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from punica_kernels.shared_prefixes import PrefixGroupTracker
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.paging.prefix_cache import PrefixCache
from punica_serve.paging.prefix_hash import prefix_hash
from punica_serve.paging.shared_pages import SharedPagePool
from punica_serve.protocol import PrefixCaching, Request, SamplingParams

_SHARING = PrefixCaching("benchmark")
#: Each block has a page's worth of steps.
_STEPS, _BLOCK = 512, 16
#: Requests behind one prefix, where attention reads shared prefixes once.
_GROUP_SIZE = 8


@dataclass(frozen=True, slots=True)
class HostTime:
    """Microseconds, of a pool in which ``num_known_pages`` are known."""

    num_known_pages: int
    batch_size: int
    #: Added to a decode step. Pages become known when a prefill ends and when a request does, never in between.
    step_us: float
    #: Added to the start and the end of a request whose prompt is known.
    request_us: float
    #: Finding the decodes that share prefixes, in a step in which none joins or leaves, and in one where one does each.
    same_groups_us: float
    changed_groups_us: float


def measure_host_time(
    *, num_known_pages: int = 100_000, batch_size: int = 64, prompt_tokens: int = 1050, page_size: int = 16
) -> HostTime:
    """Runs the accounting alone: no model, no device. The pool is full, so each new page is one that was known."""
    pool = SharedPagePool(num_known_pages + batch_size * -(-(prompt_tokens + batch_size + _STEPS) // page_size))
    desk = _PlannerLoad(pool, page_size)
    plain = _PlannerLoad(SharedPagePool(pool.num_pages), page_size, is_sharing=False)
    for number in range(pool.num_pages * page_size // prompt_tokens + 1):
        desk.end(desk.start(number, prompt_tokens))
    step_us, request_us = (
        shared - alone
        for shared, alone in zip(*(each.times_us(batch_size, prompt_tokens) for each in (desk, plain)), strict=True)
    )
    groups_us = _groups_us(batch_size, prompt_tokens // page_size, page_size)
    return HostTime(pool.num_known, batch_size, step_us, request_us, *groups_us)


class _PlannerLoad:
    """Starts, decodes and ends requests as the planner does."""

    def __init__(self, pool: SharedPagePool, page_size: int, *, is_sharing: bool = True) -> None:
        self._is_sharing = is_sharing
        self._pool = pool
        self._page_size = page_size
        self._cache = PrefixCache(pool, page_size)

    def times_us(self, batch_size: int, prompt_tokens: int) -> tuple[float, float]:
        """The times of a decode step of so many requests, and of a request that starts and ends."""
        batch = [self.start(-1 - number, prompt_tokens + number) for number in range(batch_size)]
        step_us = _microseconds(lambda: self.step(batch))
        return step_us, _microseconds(lambda: self.end(self.start(0, prompt_tokens)))

    def start(self, number: int, num_tokens: int) -> Sequence:
        prompt = tuple((number * 7919 + place) & 0xFFFF for place in range(num_tokens))
        request = Request("", number, prompt, SamplingParams())
        sequence = Sequence.of(request, 1 << 20)
        if self._is_sharing:
            sequence.prefix_hash = prefix_hash(request, _SHARING, self._page_size)
        self._cache.admit(sequence)
        sequence.pages += self._pool.allocate(-(-(num_tokens + 1) // self._page_size) - len(sequence.pages))
        sequence.num_cached = num_tokens
        self._cache.name(sequence)
        return sequence

    def step(self, batch: list[Sequence]) -> None:
        """One token for each, and a page for those whose last one is full."""
        for sequence in batch:
            sequence.num_cached = len(sequence.token_ids)
            sequence.token_ids.append(1)
            if len(sequence.token_ids) > len(sequence.pages) * self._page_size:
                sequence.pages += self._pool.allocate(1)

    def end(self, sequence: Sequence) -> None:
        self._cache.release(sequence)


def _groups_us(batch_size: int, prompt_pages: int, page_size: int) -> tuple[float, float]:
    """The times of a step whose requests are those of the step before, and of one that has lost one and got another."""
    tracker, pages, numbers = PrefixGroupTracker(page_size), count(), count()
    tables: list[list[int]] = []
    prefix: list[int] = []

    def join() -> None:
        nonlocal prefix
        if next(numbers) % _GROUP_SIZE == 0:
            prefix = [next(pages) for _ in range(prompt_pages)]
        tables.append([*prefix, next(pages)])

    def change() -> None:
        del tables[0]
        join()
        find()

    def find() -> None:
        tracker.groups([*tables])

    for _ in range(batch_size):
        join()
    return _microseconds(find), _microseconds(change)


def _microseconds(work: Callable[[], None]) -> float:
    """The mean of the quickest block, which nothing else has interrupted."""
    means: list[float] = []
    for _ in range(_STEPS // _BLOCK):
        started_s = time.perf_counter()
        for _ in range(_BLOCK):
            work()
        means.append((time.perf_counter() - started_s) / _BLOCK * 1e6)
    return min(means)
