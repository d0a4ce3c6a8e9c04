"""Finds the requests of a step whose page tables begin with the same pages, so that attention reads those pages once.

Plain numpy, a pure function of the page tables: prefix caching makes requests share pages, and nothing else is asked.
"""

import sys
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from punica_kernels.members import Indices

#: Tokens of the shortest prefix that counts: the partial results of a shorter one cost as much as reading it again.
MIN_PREFIX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class PrefixGroups:
    """Groups of two requests or more. A request is in one group at most."""

    #: [members] the requests, one group's after the other's.
    requests: Indices
    #: [groups + 1] where each group's requests begin, then their number.
    starts: Indices
    #: [groups] the pages that all requests of a group begin with.
    num_pages: Indices

    @property
    def sizes(self) -> Indices:
        """[groups] requests of each group."""
        return np.diff(self.starts)

    def within(self, limit: int, lengths: Indices) -> "PrefixGroups":
        """The groups whose requests all have so many tokens at most. ``lengths``: those of every request."""
        sizes = self.sizes
        is_kept = np.maximum.reduceat(lengths[self.requests], self.starts[:-1]) <= limit
        starts = np.concatenate([[0], np.cumsum(sizes[is_kept])])
        return PrefixGroups(self.requests[np.repeat(is_kept, sizes)], starts, self.num_pages[is_kept])


_NOTHING = np.zeros(0, np.int64)
NO_GROUPS = PrefixGroups(_NOTHING, np.zeros(1, np.int64), _NOTHING)


def find_prefix_groups(
    pages: npt.NDArray[np.int32], page_starts: npt.ArrayLike, lengths: npt.ArrayLike, page_size: int
) -> PrefixGroups:
    """The groups of N requests; a request's newest token, and so the page that it lies in, belongs to itself alone.

    Prefixes nest: of requests that begin alike, some may go on alike. Groups are cut where most would be lost by
    reading only what all share, and a request reads one shared prefix at most.

    Args:
        pages: int32 [any number]: the page tables of all requests. Page numbers are not negative.
        page_starts, lengths: [N] or more, and [N]: where each table begins, and its request's tokens.
    """
    counts = (np.asarray(lengths, np.int64) - 1) // page_size
    min_pages = -(-MIN_PREFIX_TOKENS // page_size)
    candidates = np.flatnonzero(counts >= min_pages)
    first_pages = np.asarray(page_starts, np.int64)[candidates]
    deep = np.sort(pages[first_pages + (min_pages - 1)])
    if not (deep[1:] == deep[:-1]).any():
        return NO_GROUPS
    counts = counts[candidates]
    table = pages.take(first_pages[:, None] + np.arange(counts.max()), mode="clip")
    # As bytes, since any order will do that puts equal beginnings side by side.
    order = table.view(np.dtype((np.void, table.strides[0]))).ravel().argsort()
    table, counts = table[order], counts[order]
    is_other = np.ones((len(order) - 1, table.shape[1] + 1), np.bool_)
    np.not_equal(table[1:], table[:-1], out=is_other[:, :-1])
    # Past its own pages a row of the table goes on with anything.
    num_common = np.minimum(is_other.argmax(axis=1), np.minimum(counts[1:], counts[:-1]))
    runs = _runs(num_common.tolist(), min_pages)
    if not runs:
        return NO_GROUPS
    requests = candidates[order]
    members = [requests[first:end] for first, end, _ in runs]
    starts = [0, *accumulate(end - first for first, end, _ in runs)]
    return PrefixGroups(np.concatenate(members), np.array(starts), np.array([fewest for *_, fewest in runs]))


def _runs(num_common: list[int], min_pages: int) -> list[tuple[int, int, int]]:
    """(first, end, pages) of the groups among N sorted requests.

    ``num_common``: [N - 1] the pages that each request shares with the next. Any two requests share the fewest of those
    between them. Neighbours part where they share less than half of what one of them shares with its other neighbour.
    """
    runs: list[tuple[int, int, int]] = []
    first, fewest, before = 0, sys.maxsize, 0
    for place, (here, after) in enumerate(pairwise([*num_common, 0, 0])):
        doubled = 2 * here
        if here >= min_pages and doubled >= before and doubled >= after:
            if here < fewest:
                fewest = here
        else:
            if place > first:
                runs.append((first, place + 1, fewest))
            first, fewest = place + 1, sys.maxsize
        before = here
    return runs
