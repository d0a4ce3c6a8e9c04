"""The LoRA work of a batch: sums that the time of a step depends on, kept up to date as rows come and go."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from punica_serve.base_model.lora_layout import pages_needed
from punica_serve.protocol import AdapterRef


class AdapterSize(NamedTuple):
    """An adapter's highest rank, and the rank pages that it takes in all groups together."""

    rank: int
    num_pages: int


NO_ADAPTER = AdapterSize(0, 0)


class LoraLoad(NamedTuple):
    """The load of a batch on LoRA kernels."""

    #: Rows with an adapter.
    num_rows: int = 0
    #: Each row's rank, added up; and the highest.
    sum_ranks: int = 0
    max_rank: int = 0
    #: Rank pages of the batch's different adapters.
    num_pages: int = 0

    def with_row(self, size: AdapterSize, *, is_new: bool = True) -> "LoraLoad":
        """Returns the load with one more row; ``is_new``: no other row has its adapter."""
        num_pages = self.num_pages + (size.num_pages if is_new else 0)
        return LoraLoad(self.num_rows + 1, self.sum_ranks + size.rank, max(self.max_rank, size.rank), num_pages)


NO_LORA = LoraLoad()


@lru_cache(maxsize=4096)
def _size_of(ranks: tuple[tuple[str, int], ...]) -> AdapterSize:
    """Few adapters differ in their ranks."""
    return AdapterSize(max((rank for _, rank in ranks), default=0), sum(pages_needed(dict(ranks)).values()))


def adapter_size(ref: AdapterRef) -> AdapterSize:
    return _size_of(tuple(ref.ranks.items()))


#: A row's adapter and its size; None runs the base model.
AdapterRow = tuple[str | None, AdapterSize | None]


class LoraAccount:
    """The adapters of a set of rows."""

    __slots__ = ("_load", "_num_pages", "_num_rows", "_ranks", "_rows_of", "_sum_ranks")

    def __init__(self) -> None:
        self._num_rows = self._sum_ranks = self._num_pages = 0
        #: Rows of each adapter, by digest, and of each rank.
        self._rows_of: Counter[str] = Counter()
        self._ranks: Counter[int] = Counter()
        #: The answer of ``load``; None after a change.
        self._load: LoraLoad | None = NO_LORA

    @property
    def load(self) -> LoraLoad:
        if self._load is None:
            self._load = LoraLoad(self._num_rows, self._sum_ranks, max(self._ranks, default=0), self._num_pages)
        return self._load

    def __contains__(self, digest: str) -> bool:
        return digest in self._rows_of

    def num_adapters_with(self, rows: Iterable[AdapterRow]) -> int:
        """Different adapters, with more rows."""
        return len(self._rows_of) + len({digest for digest, _ in rows if digest and digest not in self._rows_of})

    def load_with(self, rows: Iterable[AdapterRow]) -> LoraLoad:
        """Returns the load with more rows."""
        load, new = self.load, set[str]()
        for digest, size in rows:
            if digest is not None and size is not None:
                is_new = digest not in self._rows_of and digest not in new
                load = load.with_row(size, is_new=is_new)
                new.add(digest)
        return load

    def add(self, digest: str, size: AdapterSize) -> None:
        """A row joins."""
        self._load = None
        self._num_rows += 1
        self._sum_ranks += size.rank
        self._ranks[size.rank] += 1
        self._rows_of[digest] += 1
        if self._rows_of[digest] == 1:
            self._num_pages += size.num_pages

    def remove(self, digest: str, size: AdapterSize) -> None:
        """A row that joined leaves."""
        self._load = None
        self._num_rows -= 1
        self._sum_ranks -= size.rank
        self._ranks[size.rank] -= 1
        if not self._ranks[size.rank]:
            del self._ranks[size.rank]
        self._rows_of[digest] -= 1
        if not self._rows_of[digest]:
            del self._rows_of[digest]
            self._num_pages -= size.num_pages
