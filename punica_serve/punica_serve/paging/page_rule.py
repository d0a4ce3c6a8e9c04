"""How many pages of a KvCache a request holds: one rule for the planner, the simulator and the scheduler. Pure.

Where every layer of a model has a sliding window, no row sees a token behind the largest of them. So pages wholly
behind it are given back while the request runs, and a request of any length holds the pages of a window and of the
chunk that the next step computes. A page holds all layers: where one of them sees the whole context, all are kept.
"""

import sys
from dataclasses import dataclass, field

from punica_serve.batching_rules import pages_for
from punica_serve.protocol import KvWindow

#: More tokens, and more pages, than any request has.
UNLIMITED = sys.maxsize


def first_kept_page(num_cached: int, page_size: int, window: int | None) -> int:
    """The first page that a row behind ``num_cached`` tokens, or a later one, sees: those before it can be given back.

    ``window``: tokens that a row of any layer sees at most, itself among them; None: some layer sees the whole context.
    """
    return 0 if window is None else max(0, num_cached - window + 1) // page_size


@dataclass(frozen=True, slots=True)
class PageRule:
    """The rule of one KvCache."""

    page_size: int
    #: Tokens that a row of any layer sees at most, itself among them; None: some layer sees the whole context.
    window: int | None = None
    #: Tokens of a request that one step computes at most.
    chunk_tokens: int = 1
    #: Pages that a request holds at most: while its prompt is computed, and then.
    most_pages: int = field(init=False)
    most_decoding_pages: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "most_pages", self._most_for(self.chunk_tokens))
        # One token's row, and a page for the token after it, which the request may have had since its prompt.
        object.__setattr__(self, "most_decoding_pages", min(self.most_pages, self._most_for(2)))

    def _most_for(self, num_rows: int) -> int:
        """Pages that so many rows and all that the first of them sees lie in, at most: they may begin anywhere."""
        if self.window is None:
            return UNLIMITED
        return pages_for(self.window + num_rows - 2, self.page_size) + 1

    @classmethod
    def of(cls, page_size: int, window: KvWindow | None) -> "PageRule":
        """The rule of a worker that says this of itself."""
        return cls(page_size) if window is None else cls(page_size, window.num_tokens, window.chunk_tokens)

    def held_by(self, num_tokens: int) -> int:
        """The most pages that a request holds while it has so many tokens."""
        return min(pages_for(num_tokens, self.page_size), self.most_pages)

    def held_decoding(self, num_tokens: int) -> int:
        """The same of a request whose tokens are all computed but for the newest."""
        return min(pages_for(num_tokens, self.page_size), self.most_decoding_pages)

    def to_start(self, num_tokens: int) -> int:
        """Pages that a request takes when it is admitted: for its tokens and one more."""
        return self.held_by(num_tokens + 1)

    def first_kept(self, num_cached: int) -> int:
        """The first page that the rows behind so many tokens see."""
        return first_kept_page(num_cached, self.page_size, self.window)

    def next_release(self, num_released: int) -> int:
        """The computed tokens at which a request gives back a page more than so many. Only with a window."""
        assert self.window is not None
        return (num_released + 1) * self.page_size + self.window - 1

    def table_length(self, num_tokens: int, num_cached: int) -> int:
        """Where the pages of a request end that has computed ``num_cached`` tokens. They begin at `first_kept`."""
        num_pages = pages_for(num_tokens, self.page_size)
        if self.window is None:  # asked of every request in every step
            return num_pages
        return min(num_pages, self.first_kept(num_cached) + self.most_pages)

    def longest(self, num_pages: int) -> int:
        """Tokens of the longest request that so many pages hold."""
        return UNLIMITED if num_pages >= self.most_pages else num_pages * self.page_size
