"""Decides what the next step runs: plain Python over sequences and page counts, no tensors.

A request waits (no pages), then runs (holds pages). Waiting requests are admitted first come, first served. A step
mixes at most one prefill, chunked past a token budget, with all decodes (Punica, section 5). A running request whose
adapter is still on its way keeps its pages and stays out of the step; nobody waits for it.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from punica_serve.engine.kv_cache import KvCache
from punica_serve.engine.sequence import Sequence

_by_arrival = attrgetter("arrival")


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Tokens [start, end) of a sequence."""

    sequence: Sequence
    start: int
    end: int
    #: It ends with the newest token, and yields the next one.
    is_last: bool

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One model invocation. ``decodes`` is ordered: the prefill's adapter first, then adapter by adapter."""

    prefill: PrefillChunk | None
    decodes: tuple[Sequence, ...]

    @property
    def sampled(self) -> tuple[Sequence, ...]:
        """The sequences that get a token, in row order."""
        if self.prefill and self.prefill.is_last:
            return (self.prefill.sequence, *self.decodes)
        return self.decodes

    @property
    def num_adapters(self) -> int:
        """Different adapters in the step."""
        return len({sequence.digest for sequence in self.sequences if sequence.digest})

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        return (self.prefill.sequence, *self.decodes) if self.prefill else self.decodes


class Planner:
    """Owns the waiting and the running sequences and moves pages of the KvCache between them."""

    def __init__(self, cache: KvCache, *, max_batch_size: int, prefill_budget_tokens: int) -> None:
        self._cache = cache
        self._max_batch_size = max_batch_size
        self._prefill_budget_tokens = prefill_budget_tokens
        self._waiting: list[Sequence] = []  # by arrival
        self._running: list[Sequence] = []  # by arrival

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    def next_waiting(self, count: int) -> list[Sequence]:
        """Those that will be admitted first."""
        return self._waiting[:count]

    def could_hold(self, sequence: Sequence) -> bool:
        """Whether the sequence could run if it were alone."""
        return self._pages_to_start(sequence) <= self._cache.pages.num_pages

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_by_arrival)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence and takes its pages back."""
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        self._take_pages(sequence)

    def next_admissible(self) -> Sequence | None:
        """The first waiting sequence, if the batch and the KvCache have room for it; if not, it blocks the others.

        One whose last token is in flight holds its pages until that is known, and its place in the batch no more.
        """
        if not self._waiting or self._num_unfinished >= self._max_batch_size:
            return None
        first = self._waiting[0]
        return first if self._pages_to_start(first) <= self._cache.pages.num_free else None

    def admit(self, sequence: Sequence) -> None:
        """Moves an admissible sequence to running, with pages for its tokens and one more."""
        self._waiting.remove(sequence)
        sequence.pages = self._cache.allocate(self._pages_to_start(sequence))
        insort(self._running, sequence, key=_by_arrival)

    def plan(self, is_ready: Callable[[Sequence], bool]) -> tuple[StepPlan | None, list[Sequence]]:
        """The next step, and the sequences that it had to put back to wait for want of a page.

        ``is_ready`` tells whether a sequence's adapter is on the device.
        """
        displaced = self._grow([sequence for sequence in self._runnable(is_ready) if sequence.is_decoding])
        ready = self._runnable(is_ready)
        prefill = next((self._chunk(sequence) for sequence in ready if not sequence.is_decoding), None)
        decodes = [sequence for sequence in ready if sequence.is_decoding]
        if prefill is None and not decodes:
            return None, displaced
        return StepPlan(prefill, _order_decodes(decodes, prefill)), displaced

    def has_runnable(self, is_ready: Callable[[Sequence], bool]) -> bool:
        """Whether ``plan`` would give a step."""
        return bool(self._runnable(is_ready))

    def _runnable(self, is_ready: Callable[[Sequence], bool]) -> list[Sequence]:
        return [sequence for sequence in self._running if not sequence.is_complete and is_ready(sequence)]

    @property
    def _num_unfinished(self) -> int:
        return sum(not sequence.is_complete for sequence in self._running)

    def check_invariants(self) -> None:
        held = [page for sequence in self._running for page in sequence.pages]
        self._cache.pages.check_invariants(held)
        assert not any(sequence.pages for sequence in self._waiting), "a waiting sequence holds pages"
        assert self._num_unfinished <= self._max_batch_size
        for queue in (self._waiting, self._running):
            assert queue == sorted(queue, key=_by_arrival)

    def _pages_to_start(self, sequence: Sequence) -> int:
        return self._cache.pages_for(sequence.num_tokens + 1)

    def _grow(self, decoding: Iterable[Sequence]) -> list[Sequence]:
        """Gives each decoding sequence, oldest first, the page its next token needs, at the newest one's cost."""
        displaced: list[Sequence] = []
        for sequence in decoding:
            missing = self._cache.pages_for(sequence.num_tokens) - len(sequence.pages)
            while missing > self._cache.pages.num_free and sequence not in displaced:
                displaced.append(self._displace_newest())
            if sequence not in displaced and missing > 0:
                sequence.pages += self._cache.allocate(missing)
        return displaced

    def _displace_newest(self) -> Sequence:
        """Punica evicts the newest request, which preserves first come, first served (section 5.3)."""
        newest = self._running.pop()
        self._take_pages(newest)
        insort(self._waiting, newest, key=_by_arrival)
        return newest

    def _take_pages(self, sequence: Sequence) -> None:
        self._cache.pages.free(sequence.pages)
        sequence.pages = []
        sequence.num_cached = sequence.num_in_flight = 0

    def _chunk(self, sequence: Sequence) -> PrefillChunk:
        end = min(sequence.num_tokens, sequence.num_cached + self._prefill_budget_tokens)
        return PrefillChunk(sequence, sequence.num_cached, end, end == sequence.num_tokens)


def _order_decodes(decodes: list[Sequence], prefill: PrefillChunk | None) -> tuple[Sequence, ...]:
    """Rows that share an adapter adjacent, and those of the prefill's adapter next to the prefill."""
    by_adapter: dict[str | None, list[Sequence]] = {}
    if prefill is not None:
        by_adapter[prefill.sequence.digest] = []
    for sequence in decodes:
        by_adapter.setdefault(sequence.digest, []).append(sequence)
    return tuple(sequence for group in by_adapter.values() for sequence in group)
