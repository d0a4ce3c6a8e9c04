"""The pages of a simulated GPU's rows."""

from collections.abc import Iterable, Sequence

from punica_serve.batching_rules import take_missing
from punica_serve.errors.invariants import require
from punica_serve.paging.page_rule import PageRule
from punica_serve.paging.prefix_cache import PrefixCache
from punica_serve.paging.shared_pages import SharedPagePool
from punica_serve.protocol import GpuInfo
from punica_serve.simulation.row import Row


class RowPages:
    """A KvCache without keys and values. Rows have their first pages; those that they get while they decode are here.

    Which of the later ones are whose matters only when a row leaves the decodes.
    """

    def __init__(self, info: GpuInfo) -> None:
        self.rule = PageRule.of(info.page_size, info.window)
        self._pool = SharedPagePool(info.num_kv_pages)
        self.prefixes = PrefixCache(self._pool, info.page_size, self.rule.window)
        self._growth: list[int] = []

    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_shared(self) -> int:
        """Holders of pages beyond each page's first."""
        return self._pool.num_shared

    @property
    def num_known(self) -> int:
        """Pages that a request could find."""
        return self._pool.num_known

    # -------------------------------------------------------------- rows that start

    def num_to_admit(self, row: Row) -> int:
        """Free pages that a waiting row takes when it starts: none for known pages that others hold."""
        num_pages = self.rule.to_start(row.num_tokens)
        if num_pages <= self._pool.num_free:
            return num_pages
        return num_pages - self.prefixes.num_held(row)

    def admit(self, row: Row) -> None:
        """Gives a row its first pages, known ones among them."""
        self.prefixes.admit(row)
        row.num_pages = self.rule.table_length(row.num_tokens + 1, row.num_cached)
        row.pages += self._pool.allocate(row.num_pages - len(row.pages))

    def prepare(self, row: Row) -> bool:
        """Takes known pages for a row; whether it then has the pages of its next chunk."""
        self.prefixes.take(row)
        self.prefixes.give_back(row)
        row.num_pages = len(row.pages)
        return take_missing(row, self._num_missing(row), num_free=self.num_free, give=self.take)

    def lacking(self, starting: Iterable[Row]) -> list[tuple[Row, int]]:
        """Rows that prefill and lack pages, and how many: only behind a window have they not had all at the start."""
        if self.rule.window is None:
            return []
        return [(row, missing) for row in starting if (missing := self._num_missing(row)) > 0]

    def _num_missing(self, row: Row) -> int:
        return self.rule.table_length(row.num_tokens, row.num_cached) - row.num_pages

    def take(self, row: Row, num_pages: int) -> None:
        """Takes pages for a row that does not decode."""
        row.pages += self._pool.allocate(num_pages)
        row.num_pages += num_pages

    # -------------------------------------------------------------- rows that decode, and that leave

    def grow(self, num_pages: int) -> None:
        """Takes pages for rows that decode, whose own numbers are not updated."""
        self._growth += self._pool.allocate(num_pages)

    def give_back(self, row: Row) -> None:
        """Takes back the pages that no row sees any more, of one that is in no decode batch."""
        self._collect_growth(row)
        self.prefixes.give_back(row)

    def release(self, row: Row) -> None:
        """Frees the pages of a row that no longer runs."""
        self._collect_growth(row)
        self.prefixes.release(row)
        row.num_pages = 0

    def _collect_growth(self, row: Row) -> None:
        """Gives a row that is in no batch the pages that it got while it decoded."""
        first = len(self._growth) - (row.num_pages - len(row.pages))
        row.pages += self._growth[first:]
        del self._growth[first:]

    def check_invariants(self, rows: Sequence[Row], num_held: int) -> None:
        """Against all rows and the pages that they hold by their own count. AssertionError is a bug of ours."""
        held = [page for row in rows for page in row.pages[row.num_released :]]
        self._pool.check_invariants([*held, *self._growth])
        require(num_held == len(held) + len(self._growth), "pages are lost, or held twice")
