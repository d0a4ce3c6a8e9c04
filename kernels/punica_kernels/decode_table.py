"""A step's decodes as int32 words of a fixed layout: which program of the GPU's decode kernel reads which tokens.

Requests are of unequal length, so their tokens are laid end to end and cut into equal ranges, one for each program of a
fixed grid (as stream-K cuts products, Osama et al., 2023). An item is what a range has of one request, whole pages but
for the request's last. A request that lies in several items gets its result from partial ones: these items have a slot
each, in the order of the tokens.

A CUDA graph replays the same launch whatever the data says: a table's size depends on its `DecodeTableShape` alone.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

#: Words of an item: row, first page (a place in the list of pages), tokens, slot, the row's first slot, its items.
ITEM_WORDS = 8
#: Sections of a table begin at a multiple of this many words, so that a kernel may rely on their alignment.
_ALIGNMENT = 8
#: Fewest pages that are worth a program of their own.
_MIN_PROGRAM_PAGES = 2

Words = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeTableShape:
    """What a table can hold: it fixes the table's size and the kernel's grid."""

    #: Requests, each of at least one token.
    num_rows: int
    #: Programs for each kv head.
    num_programs: int
    #: Most pages of all requests together.
    max_pages: int
    page_size: int

    def __post_init__(self) -> None:
        if min(self.num_rows, self.num_programs, self.page_size) < 1 or self.max_pages < self.num_rows:
            raise ValueError(f"a table has rows of a page or more, and programs, got {self}")

    @property
    def max_items(self) -> int:
        """Every cut between two programs makes one item more."""
        return self.num_rows + self.num_programs - 1

    @property
    def items_start(self) -> int:
        """Where the items start, in words. Before them: each program's first item, and the number of items."""
        return _align(self.num_programs + 1)

    @property
    def pages_start(self) -> int:
        """Where the pages start, one request's after the other's."""
        return self.items_start + _align(self.max_items * ITEM_WORDS)

    @property
    def num_words(self) -> int:
        return self.pages_start + self.max_pages

    def lay_out(self, lengths: Words, indptr: Words, pages: Words) -> Words:
        """The first words of a table, all that matter: int32, at most num_words.

        Args:
            lengths: int32 [num_rows], tokens of each request, at least 1.
            indptr: int32 [num_rows + 1]: request i has pages[indptr[i] : indptr[i + 1]], as many as it needs.
            pages: int32 [indptr[-1]].

        Raises ValueError when these do not fit the shape.
        """
        if lengths.shape != (self.num_rows,) or len(pages) > self.max_pages:
            raise ValueError(f"{len(lengths)} requests of {len(pages)} pages do not fit {self}")
        if lengths.min() < 1 or not np.array_equal(np.diff(indptr), -(-lengths // self.page_size)):
            raise ValueError("every request must have the pages of its tokens, and one token at least")
        words = np.zeros(self.pages_start + len(pages), np.int32)
        words[self.pages_start :] = pages
        cuts = self._cuts(len(pages))
        first_page = np.union1d(indptr[:-1], cuts[cuts < len(pages)])
        row = np.searchsorted(indptr, first_page, side="right") - 1
        end_page = np.append(first_page[1:], len(pages))
        end_token = np.minimum((end_page - indptr[row]) * self.page_size, lengths[row])
        first_item = np.searchsorted(first_page, indptr)
        num_items = np.diff(first_item)[row]
        slot = np.cumsum(num_items > 1) - 1
        words[: self.num_programs + 1] = np.searchsorted(first_page, cuts)
        items = words[self.items_start :][: len(row) * ITEM_WORDS].reshape(len(row), ITEM_WORDS)
        items[:, 0] = row
        items[:, 1] = first_page
        items[:, 2] = end_token - (first_page - indptr[row]) * self.page_size
        items[:, 3] = slot
        items[:, 4] = slot[first_item[row]]
        items[:, 5] = num_items
        return words

    def _cuts(self, num_pages: int) -> Indices:
        """Where each program's pages start, and their end; programs past the ones in use have none."""
        in_use = min(self.num_programs, -(-num_pages // _MIN_PROGRAM_PAGES))
        cuts: Indices = np.minimum(np.arange(self.num_programs + 1), in_use) * num_pages // in_use
        return cuts


@dataclass(frozen=True, slots=True)
class DecodeTable:
    """A table on the device."""

    #: int32 [shape.num_words]
    words: Tensor
    shape: DecodeTableShape


def max_slots(num_programs: int) -> int:
    """Most slots of a table: a cut splits one request, and one that is split has an item more than it has cuts."""
    return max(1, 2 * (num_programs - 1))


def _align(num_words: int) -> int:
    return -(-num_words // _ALIGNMENT) * _ALIGNMENT
