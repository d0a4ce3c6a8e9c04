"""The pages of a KvCache: several requests may hold one, and a free one stays known by its contents."""

from collections import Counter, OrderedDict
from collections.abc import Iterable

from punica_serve.errors.invariants import require

#: How many times the pool's pages may be held beyond their first holders: the bound of a step's page table.
MAX_SHARING = 4


def max_pages_named(num_pages: int, *, is_sharing: bool) -> int:
    """The most pages that the requests of a step hold together, each page as often as it is held."""
    return num_pages * (1 + MAX_SHARING * is_sharing)


class SharedPagePool:
    """Hands out page numbers from 0 to num_pages - 1.

    A page is held by one request or more, or free. A page with a key is *known*: it is full, and found by its key. A
    free page stays known until it is allocated. Those not known are allocated first, then the least recently used.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        #: Holders beyond the first, of all pages together.
        self.num_shared = 0
        self._num_touched = 0  # pages from here on were never allocated
        self._free: list[int] = []  # not known
        self._idle: OrderedDict[int, None] = OrderedDict()  # free and known, the least recently used first
        self._extra_holders: dict[int, int] = {}
        self._keys: dict[int, bytes] = {}
        self._pages: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return self.num_pages - self._num_touched + len(self._free) + len(self._idle)

    @property
    def num_known(self) -> int:
        """Pages that a request could find."""
        return len(self._keys)

    def allocate(self, count: int) -> list[int]:
        """Takes ``count`` pages. Check ``num_free`` first: asking for more is a bug."""
        require(0 <= count <= self.num_free, f"{count} pages asked, {self.num_free} free")
        taken = self._free[max(0, len(self._free) - count) :]
        del self._free[len(self._free) - len(taken) :]
        num_new = min(count - len(taken), self.num_pages - self._num_touched)
        taken += range(self._num_touched, self._num_touched + num_new)
        self._num_touched += num_new
        while len(taken) < count:
            page, _ = self._idle.popitem(last=False)
            del self._pages[self._keys.pop(page)]
            taken.append(page)
        return taken

    def free(self, pages: list[int]) -> None:
        """Gives a request's pages back. Known pages are reused from the prompt's end on, since a page is found only
        together with all before it.
        """
        if not self._keys and not self._extra_holders:
            self._free.extend(pages)
            return
        for page in reversed(pages):
            if page in self._extra_holders:
                self._drop_holder(page)
            elif page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of these keys up to the first that is not known, or that may have no further holder."""
        found: list[int] = []
        num_left = MAX_SHARING * self.num_pages - self.num_shared
        for key in keys:
            page = self._pages.get(key)
            if page is None or num_left == 0:
                break
            num_left -= page not in self._idle
            found.append(page)
        return found

    def num_held(self, pages: Iterable[int]) -> int:
        """How many of these known pages somebody holds, so that sharing them takes no free page."""
        return sum(page not in self._idle for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Adds a holder to known pages."""
        for page in pages:
            if page in self._idle:
                del self._idle[page]
            else:
                self._extra_holders[page] = self._extra_holders.get(page, 0) + 1
                self.num_shared += 1

    def name(self, page: int, key: bytes) -> None:
        """Makes a held page known, unless another one with the same contents is."""
        if key not in self._pages and page not in self._keys:
            self._pages[key] = page
            self._keys[page] = key

    def forget(self, pages: Iterable[int]) -> None:
        """Makes pages unknown: nobody finds them any more."""
        for page in pages:
            if (key := self._keys.pop(page, None)) is not None:
                del self._pages[key]
                if page in self._idle:
                    del self._idle[page]
                    self._free.append(page)

    def forget_keys(self, keys: Iterable[bytes]) -> None:
        """Makes the pages of these keys unknown, held or not."""
        self.forget([page for key in keys if (page := self._pages.get(key)) is not None])

    def knows(self, key: bytes) -> bool:
        return key in self._pages

    def _drop_holder(self, page: int) -> None:
        self.num_shared -= 1
        self._extra_holders[page] -= 1
        if not self._extra_holders[page]:
            del self._extra_holders[page]

    def check_invariants(self, held: Iterable[int]) -> None:
        """``held``: all pages that holders say they hold, each as often as it is held. AssertionError is a bug."""
        holders = Counter(held)
        everything = sorted([*self._free, *self._idle, *holders, *range(self._num_touched, self.num_pages)])
        if everything != list(range(self.num_pages)):
            raise AssertionError(f"pages lost, or held and free: {len(holders)} held of {self.num_pages}")
        extra = {page: count - 1 for page, count in holders.items() if count > 1}
        require(self._extra_holders == extra, "the reference counts of pages differ from what requests hold")
        require(self.num_shared == sum(extra.values()), "the number of shared pages is wrong")
        require(self._pages == {key: page for page, key in self._keys.items()}, "a page's key leads to another page")
        require(self._idle.keys() <= self._keys.keys(), "an idle page is not known")
        require(not self._keys.keys() & set(self._free), "a page that is not known has a key")
