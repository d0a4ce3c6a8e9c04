"""Which pages a request finds, takes and leaves behind: one rulebook for the engine and the simulator."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from punica_serve.batching_rules import pages_for
from punica_serve.paging.page_rule import first_kept_page
from punica_serve.paging.prefix_hash import HINT_PAGES, PrefixHash, hint_of
from punica_serve.paging.prefix_hints import PrefixHints
from punica_serve.paging.shared_pages import SharedPagePool


class PageHolder(Protocol):
    """A request that has pages, or will."""

    #: None: it shares no pages.
    prefix_hash: PrefixHash | None
    #: In order of tokens; empty while it waits.
    pages: list[int]
    #: So many of its first pages lie behind all windows and are not its own any more: nobody reads them here.
    num_released: int
    num_cached: int
    #: So many of its first pages are known, or others with the same contents are.
    num_named: int
    #: Tokens that it found in pages of others, or in its own of an earlier stay.
    num_found: int

    @property
    def num_tokens(self) -> int: ...

    @property
    def known_ids(self) -> Sequence[int]:
        """The tokens that the host knows: all, or all but the newest."""
        ...


HolderT = TypeVar("HolderT", bound=PageHolder)

#: The tokens of a prompt that a GPU computes in about the time of a step without any.
_STEP_TOKENS = 128


class PrefixCache:
    """Shares full pages of a pool. The last token of a request is always computed, since its logits are needed."""

    def __init__(self, pool: SharedPagePool, page_size: int, window: int | None = None) -> None:
        """``window``: as `PageRule` has it."""
        self._pool = pool
        self._page_size = page_size
        self._window = window
        #: Tokens of requests that were admitted, and those of them that were found.
        self.num_queries = self.num_hits = 0
        self.hints = PrefixHints()

    def num_held(self, holder: PageHolder) -> int:
        """Pages that it would find and that others hold, so that it would take no free pages for them."""
        return self._pool.num_held(self._find(holder)[1])

    def admit(self, holder: PageHolder) -> None:
        """Gives it the pages that are known. Its owner allocates the rest, after checking that there is room."""
        if holder.prefix_hash is not None:
            self.num_queries += holder.num_tokens
            self.take(holder)

    def take(self, holder: HolderT) -> HolderT:
        """Exchanges pages that are not computed yet for known ones, which skips their computation. Returns it."""
        start, found = self._find(holder)
        if found:
            self._exchange(holder, start, found)
        return holder

    def give_back(self, holder: PageHolder) -> None:
        """Gives back the pages that none of its next rows sees. They stay known until they are allocated again."""
        first = first_kept_page(holder.num_cached, self._page_size, self._window)
        if first > holder.num_released:
            self.name(holder)
            self._pool.free(holder.pages[holder.num_released : first])
            holder.num_released = first

    def awaits(self, holder: PageHolder, other: PageHolder) -> bool:
        """Whether pages that ``other`` computes in a step would save the holder more than one step costs.

        The key of the last of so many pages is looked at alone, since it stands for all before it.
        """
        if holder.prefix_hash is None or other.prefix_hash is None:
            return False
        end = holder.num_cached // self._page_size + pages_for(_STEP_TOKENS, self._page_size)
        if end > min((holder.num_tokens - 1) // self._page_size, len(other.known_ids) // self._page_size):
            return False
        keys = [each.prefix_hash.keys(each.known_ids, end, end - 1) for each in (holder, other) if each.prefix_hash]
        return keys[0] == keys[1]

    def _exchange(self, holder: PageHolder, start: int, found: list[int]) -> None:
        """Gives it known pages from ``start`` on, for those not computed; a window hides all that is before them."""
        first = holder.num_cached // self._page_size
        end = start + len(found)
        self._pool.share(found)
        self._pool.free(holder.pages[first:end])
        # A new list, since the ranks of a group send on what is appended to an old one.
        unread = found[:1] * (start - first)
        holder.pages = [*holder.pages[:first], *unread, *found, *holder.pages[end:]]
        if unread:
            self._pool.free(holder.pages[holder.num_released : first])
            holder.num_released = start
        num_found = end * self._page_size - holder.num_cached
        holder.num_found += num_found
        self.num_hits += num_found
        holder.num_cached = end * self._page_size
        holder.num_named = end
        # Beginnings that end before its window may be gone.
        self._note_hints(holder, holder.num_released, end)

    def name(self, holder: PageHolder) -> None:
        """Makes its full pages known."""
        if holder.prefix_hash is None:
            return
        num_full = min(holder.num_cached, len(holder.known_ids)) // self._page_size
        if num_full <= holder.num_named:
            return
        keys = holder.prefix_hash.keys(holder.known_ids, num_full, holder.num_named)
        for page, key in zip(holder.pages[holder.num_named : num_full], keys, strict=True):
            self._pool.name(page, key)
        self._note_hints(holder, holder.num_named, num_full)
        holder.num_named = num_full

    def release(self, holder: PageHolder, *, keep: bool = True) -> None:
        """Gives all its pages back. ``keep``: the full ones stay known."""
        if keep:
            self.name(holder)
        else:
            self._forget(holder)
        self._pool.free(holder.pages[holder.num_released :])
        holder.pages = []
        holder.num_cached = holder.num_named = holder.num_released = 0

    def _forget(self, holder: PageHolder) -> None:
        """Makes all its pages unknown, also those that it gave back, which are found by their keys."""
        self._pool.forget(holder.pages[holder.num_released :])
        if holder.prefix_hash is not None and holder.num_released:
            self._pool.forget_keys(holder.prefix_hash.keys(holder.known_ids, holder.num_released))

    def _note_hints(self, holder: PageHolder, first: int, end: int) -> None:
        """Notes the hints of beginnings of more than ``first`` pages, and ``end`` at most."""
        if holder.prefix_hash is not None and first.bit_length() < end.bit_length():  # a power of two lies between
            for num_pages in HINT_PAGES:
                if first < num_pages <= end:
                    (key,) = holder.prefix_hash.keys(holder.known_ids, num_pages, num_pages - 1)
                    self.hints.note(hint_of(key))

    def _find(self, holder: PageHolder) -> tuple[int, list[int]]:
        """Known pages that spare it computing what comes before their end, and where in its table they begin.

        They are its first ones that are not computed: a key stands for all tokens before its page, too. Under a window
        they are those that the first row behind them sees, whatever has become of the pages before.
        """
        first, end = holder.num_cached // self._page_size, (holder.num_tokens - 1) // self._page_size
        if holder.prefix_hash is None or first >= end:
            return first, []
        if self._window is None:
            return first, self._pool.find(holder.prefix_hash.walk(holder.known_ids, end, first))
        keys = holder.prefix_hash.keys(holder.known_ids, end, first)
        num_spared = self._num_spared(keys, first)
        start = max(first, self._first_kept(first + num_spared))
        found = self._pool.find(keys[start - first : num_spared])
        return start, found if start + len(found) == first + num_spared else []

    def _num_spared(self, keys: Sequence[bytes], first: int) -> int:
        """Pages from ``first`` on that need not be computed, as all that the row behind them sees is known or computed.

        ``keys``: of the pages from ``first`` on, before which all are computed.
        """
        num_spared = first_known = 0
        for index, key in enumerate(keys):
            if not self._pool.knows(key):
                first_known = index + 1
            elif not first_known or first + first_known <= self._first_kept(first + index + 1):
                num_spared = index + 1
        return num_spared

    def _first_kept(self, num_pages: int) -> int:
        """The first page that the first row behind so many pages sees."""
        return first_kept_page(num_pages * self._page_size, self._page_size, self._window)
