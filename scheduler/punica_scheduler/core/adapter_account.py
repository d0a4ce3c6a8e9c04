"""The adapters that a GPU's working set uses, and the pages of its LoRA pool that they leave."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from punica_scheduler.core.capacity import fits
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.protocol import LoraGroup


class AdapterAccount:
    """Counts the requests of each adapter, which takes pages from the first of them to the last."""

    __slots__ = ("_num_pages", "free_pages", "refcounts")

    def __init__(self, num_pages: Mapping[LoraGroup, int]) -> None:
        self._num_pages = num_pages
        #: By digest: requests that use the adapter.
        self.refcounts: dict[str | None, int] = {}
        #: By group.
        self.free_pages = dict(num_pages)

    @property
    def used_pages(self) -> dict[LoraGroup, int]:
        """By group. Groups of which none is used are left out."""
        used = {group: pages - self.free_pages[group] for group, pages in self._num_pages.items()}
        return {group: pages for group, pages in used.items() if pages}

    def fits(self, record: RequestRecord) -> bool:
        """Whether the request's adapter fits the pool beside those that are used."""
        return record.digest in self.refcounts or fits(self.free_pages, record.lora_pages)

    def fits_all(self, records: Sequence[RequestRecord]) -> bool:
        """Whether the adapters of all these requests do together."""
        newcomers = (record for record in records if record.digest not in self.refcounts)
        return fits(self.free_pages, _pages_of(newcomers))

    def add(self, record: RequestRecord) -> None:
        refcount = self.refcounts.get(record.digest, 0)
        self.refcounts[record.digest] = refcount + 1
        if not refcount:
            for group, pages in record.lora_pages.items():
                self.free_pages[group] -= pages

    def remove(self, record: RequestRecord) -> bool:
        """Returns whether nobody else uses the adapter."""
        self.refcounts[record.digest] -= 1
        if self.refcounts[record.digest]:
            return False
        del self.refcounts[record.digest]
        for group, pages in record.lora_pages.items():
            self.free_pages[group] += pages
        return True

    def check_invariants(self, records: Sequence[RequestRecord], uuid: str) -> None:
        """Audits the sums over the working set. AssertionError is a bug of ours."""
        require(self.refcounts == Counter(record.digest for record in records), f"adapters of {uuid}")
        require(_pages_of(records) == self.used_pages, f"LoRA pages of {uuid}")
        require(all(pages >= 0 for pages in self.free_pages.values()), f"LoRA pages of {uuid}")


def _pages_of(records: Iterable[RequestRecord]) -> dict[LoraGroup, int]:
    """The pages of their adapters, each counted once."""
    pages: Counter[LoraGroup] = Counter()
    for lora_pages in {record.digest: record.lora_pages for record in records}.values():
        pages.update(lora_pages)
    return dict(pages)
