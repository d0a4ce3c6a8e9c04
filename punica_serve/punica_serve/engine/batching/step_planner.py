"""Plans the next step: plain Python over sequences and page counts, without tensors.

A request waits (no pages), then runs (holds pages). Waiting requests are admitted first come, first served. A step
mixes prefills, one of them in Punica (section 5), with all decodes. Prefills share a token budget, past which prompts
are chunked; those that need few steps and the oldest take turns. A running request whose adapter is still loading keeps
its pages and stays out of the step; no other request waits for it.
"""

from bisect import insort
from collections.abc import Callable, Iterable
from operator import attrgetter

from punica_serve.batching_rules import give_pages, may_admit, share_budget, take_missing
from punica_serve.engine.batching.kv_cache import KvCache
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.errors.invariants import require
from punica_serve.paging.page_rule import PageRule
from punica_serve.prefill_chunks import PrefillBudget
from punica_serve.prefill_turns import PrefillTurns

_by_arrival = attrgetter("arrival")

#: Whether a sequence's adapter is on the device.
IsReady = Callable[[Sequence], bool]
#: Whether a sequence's prefill may start while its adapter is being copied, beside so many decodes.
MayJoin = Callable[[Sequence, int], bool]


def _never(sequence: Sequence, num_decodes: int) -> bool:
    return False


class StepPlanner:
    """Owns the waiting and the running sequences and moves pages of the KvCache between them."""

    def __init__(
        self,
        cache: KvCache,
        *,
        max_batch_size: int,
        prefill_budget: PrefillBudget,
        max_prefills: int = 1,
    ) -> None:
        self._cache = cache
        self.page_rule = PageRule(cache.page_size, cache.window, prefill_budget.tokens)
        self._turns = PrefillTurns(prefill_budget)
        self._max_batch_size = max_batch_size
        self._max_prefills = max_prefills
        self._prefill_budget = prefill_budget
        self._waiting: list[Sequence] = []  # by arrival
        self._running: list[Sequence] = []  # by arrival
        #: The sequences that the newest plan prefills, whose pages become known once that step is launched.
        self._prefilling: tuple[Sequence, ...] = ()

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def has_room(self) -> bool:
        """Whether a short request that arrived now would be prefilled in the next step, if it needs no more pages than
        there are: none waits before it, and neither all places nor all prefills of that step are taken.
        """
        if self._waiting or self._num_unfinished >= self._max_batch_size:
            return False
        prefilling = [sequence for sequence in self._unfinished if not sequence.is_decoding]
        return self._turns.num_before_newcomer(prefilling) < self._max_prefills

    def next_waiting(self, count: int) -> list[Sequence]:
        """The sequences that will be admitted first."""
        return self._waiting[:count]

    def could_hold(self, sequence: Sequence) -> bool:
        """Whether the sequence could run if it were alone."""
        return self.page_rule.to_start(sequence.num_tokens) <= self._cache.pages.num_pages

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request that the empty KvCache could hold."""
        return self.page_rule.longest(self._cache.pages.num_pages)

    def add(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_by_arrival)

    def remove(self, sequence: Sequence, *, keep_pages: bool = True) -> None:
        """Removes a sequence and frees its pages. ``keep_pages``: other requests may find what is in them."""
        (self._running if sequence in self._running else self._waiting).remove(sequence)
        self._release_pages(sequence, keep=keep_pages)

    def next_admissible(self) -> Sequence | None:
        """The first waiting sequence, if the batch and the KvCache have room for it; if not, it blocks the others.

        A sequence whose last token is in flight still holds its pages, but no place in the batch.
        """
        if not self._waiting:
            return None
        self._name_prefilled()
        first = self._waiting[0]
        has_room = may_admit(
            self._pages_to_take(first),
            num_free_pages=self._cache.pages.num_free,
            num_running=self._num_unfinished,
            max_batch_size=self._max_batch_size,
        )
        return first if has_room else None

    def admit(self, sequence: Sequence) -> None:
        """Moves an admissible sequence to running, with pages for its tokens and one more: known ones come first.

        Under a window it gets no more than it may hold.
        """
        self._waiting.remove(sequence)
        self._cache.prefixes.admit(sequence)
        end = self.page_rule.table_length(sequence.num_tokens + 1, sequence.num_cached)
        sequence.pages += self._cache.allocate(end - len(sequence.pages))
        insort(self._running, sequence, key=_by_arrival)

    def plan(self, is_ready: IsReady, may_join: MayJoin = _never) -> tuple[StepPlan | None, list[Sequence]]:
        """The next step, and the sequences that were preempted for lack of pages.

        ``is_ready`` tells whether a sequence's adapter is on the device. ``may_join`` tells whether a prefill may start
        before that, given the step's decodes, which it must not hold for long.
        """
        self._name_prefilled()
        preempted = self._grow()
        unfinished = self._unfinished
        decodes = [sequence for sequence in unfinished if sequence.is_decoding and is_ready(sequence)]
        prefilling = [sequence for sequence in unfinished if not sequence.is_decoding]
        prefills = self._prefills(prefilling, is_ready, lambda sequence: may_join(sequence, len(decodes)))
        if not prefills and not decodes:
            return None, preempted
        plan = StepPlan.by_adapter(prefills, decodes, shares_pages=self._cache.pages.num_shared > 0)
        self._prefilling = tuple(chunk.sequence for chunk in plan.prefills)
        return plan, preempted

    def next_chunk_tokens(self, sequence: Sequence) -> int:
        """Tokens of the sequence that one step would prefill, if it were the only one."""
        return min(sequence.num_uncached, self._prefill_budget.tokens)

    def has_runnable(self, is_ready: IsReady, may_join: MayJoin = _never) -> bool:
        """Whether ``plan`` would give a step."""
        return any(is_ready(sequence) or may_join(sequence, 0) for sequence in self._unfinished)

    @property
    def _unfinished(self) -> list[Sequence]:
        """The running sequences that need more steps."""
        return [sequence for sequence in self._running if not sequence.is_complete]

    @property
    def _num_unfinished(self) -> int:
        return len(self._unfinished)

    def check_invariants(self) -> None:
        held = [page for sequence in self._running for page in sequence.held_pages]
        self._cache.pages.check_invariants(held)
        require(not any(sequence.pages for sequence in self._waiting), "a waiting sequence holds pages")
        require(self._num_unfinished <= self._max_batch_size, "self._num_unfinished <= self._max_batch_size")
        for queue in (self._waiting, self._running):
            require(queue == sorted(queue, key=_by_arrival), "queue == sorted(queue, key=_by_arrival)")

    def _pages_to_take(self, sequence: Sequence) -> int:
        """Free pages that a waiting sequence takes when it starts: none for known pages that others hold."""
        num_pages = self.page_rule.to_start(sequence.num_tokens)
        if num_pages <= self._cache.pages.num_free:
            return num_pages  # so there is no need to look
        return num_pages - self._cache.prefixes.num_held(sequence)

    def _name_prefilled(self) -> None:
        """Makes the pages known that the newest step has filled."""
        for sequence in self._prefilling:
            if not sequence.is_unsure:
                self._cache.prefixes.name(sequence)
        self._prefilling = ()

    def _grow(self) -> list[Sequence]:
        """Takes back the pages that sequences need no more, then gives each, oldest first, those for its next tokens.

        The newest ones are preempted for it. Sequences have the pages for their prompts already, but for prompts behind
        a window. One that waits for its adapter has all it needs.
        """
        growing = [sequence for sequence in self._unfinished if not sequence.is_unsure]
        if self.page_rule.window is not None:
            for sequence in growing:
                self._cache.prefixes.give_back(sequence)
        page_size = self._cache.page_size
        full = [sequence for sequence in growing if sequence.num_tokens > len(sequence.pages) * page_size]
        due = [(sequence, missing) for sequence in full if (missing := self._num_missing(sequence)) > 0]
        return give_pages(
            due,
            num_free=lambda: self._cache.pages.num_free,
            give=self._give_pages,
            preempt_newest=self._preempt_newest,
        )

    def _num_missing(self, sequence: Sequence) -> int:
        end = self.page_rule.table_length(sequence.num_tokens, sequence.num_cached)
        return end - len(sequence.pages)

    def _give_pages(self, sequence: Sequence, num_pages: int) -> None:
        sequence.pages += self._cache.allocate(num_pages)

    def _preempt_newest(self) -> Sequence:
        """Preempts the newest request, which preserves first come, first served. Punica says evict (section 5.3)."""
        newest = self._running.pop()
        self._release_pages(newest)
        insort(self._waiting, newest, key=_by_arrival)
        return newest

    def _release_pages(self, sequence: Sequence, *, keep: bool = True) -> None:
        self._cache.prefixes.release(sequence, keep=keep and not sequence.is_unsure)
        sequence.num_in_flight = 0

    def _prefills(
        self, unfinished: Iterable[Sequence], is_ready: IsReady, may_join: IsReady
    ) -> tuple[PrefillChunk, ...]:
        """The prefills of the next step, among unfinished ones.

        One that joins the copy of its adapter runs as the step's only prefill, since others would be held too.
        """
        prefilling = [sequence for sequence in unfinished if is_ready(sequence) or may_join(sequence)]
        in_turn = self._turns.order(prefilling)
        if in_turn and not is_ready(in_turn[0]):
            chunks = self._share(in_turn[:1], 1)
        else:
            chunks = self._share(filter(is_ready, in_turn), self._max_prefills)
        if chunks:
            self._turns.take(prefilling, chunks[0].sequence)
        return chunks

    def _share(self, in_turn: Iterable[Sequence], max_prefills: int) -> tuple[PrefillChunk, ...]:
        prefixes = self._cache.prefixes
        # Others may have computed some of their tokens since they were admitted.
        prefilling = (sequence for sequence in map(prefixes.take, in_turn) if self._has_pages(sequence))
        shares = share_budget(prefilling, self._prefill_budget, max_prefills=max_prefills, awaits=prefixes.awaits)
        return tuple(PrefillChunk.of(sequence, num_tokens) for sequence, num_tokens in shares)

    def _has_pages(self, sequence: Sequence) -> bool:
        """Whether it has the pages of its next chunk."""
        self._cache.prefixes.give_back(sequence)
        num_missing, num_free = self._num_missing(sequence), self._cache.pages.num_free
        return take_missing(sequence, num_missing, num_free=num_free, give=self._give_pages)
