"""Finds the requests of a step whose page tables begin with the same pages, so that attention reads those pages once.

Prefix caching makes requests share pages. Only the page tables are looked at, and only requests that join or leave the
steps cost time: what two tables share never changes while both are in use.
"""

import sys
from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, compress, count
from operator import ne

import numpy as np

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


class PrefixGroupTracker:
    """The groups of each step, from those of the step before.

    It keeps the tables in lexical order, so that those that begin alike are neighbours, and what neighbours share. Then
    any two tables share the fewest pages that two neighbours between them share.
    """

    def __init__(self, page_size: int) -> None:
        self._min_pages = -(-MIN_PREFIX_TOKENS // page_size)
        #: The newest step's, in its order.
        self._tables: list[list[int]] = []
        self._groups = NO_GROUPS
        #: In lexical order. A table is known by its identity, since it grows.
        self._sorted: list[list[int]] = []
        self._ids: list[int] = []
        #: The pages that each table shares with the next one; 0 for the last.
        self._num_common: list[int] = []

    def groups(self, tables: list[list[int]]) -> PrefixGroups:
        """The groups of N requests, which are numbered by their places in ``tables``.

        Prefixes nest: of requests that begin alike, some may go on alike. Groups are cut where most would be lost by
        reading only what all share, and a request reads one shared prefix at most.

        Args:
            tables: [N] the pages of each request. They end with pages of its own, among them that of its newest token.
                Between two calls pages may be appended to a list; whatever else changes comes in a new list.
        """
        # Lists that are the same objects are equal without a look at their pages.
        if tables != self._tables:
            self._groups = self._update(tables)
            self._tables = tables
        return self._groups

    def _update(self, tables: list[list[int]]) -> PrefixGroups:
        ids = list(map(id, tables))
        known, now = set(self._ids), set(ids)
        for gone in known - now:
            self._remove(self._ids.index(gone))
        for joined in now - known:
            self._insert(tables[ids.index(joined)])
        runs = _runs(self._num_common, self._min_pages)
        if not runs:
            return NO_GROUPS
        rows = dict(zip(ids, count()))
        requests = [rows[number] for first, end, _ in runs for number in self._ids[first:end]]
        starts = [0, *accumulate(end - first for first, end, _ in runs)]
        return PrefixGroups(np.array(requests), np.array(starts), np.array([fewest for *_, fewest in runs]))

    def _insert(self, table: list[int]) -> None:
        place = bisect_left(self._sorted, table)
        if place:
            self._num_common[place - 1] = _num_shared(self._sorted[place - 1], table)
        self._num_common.insert(place, _num_shared(table, self._sorted[place]) if place < len(self._sorted) else 0)
        self._sorted.insert(place, table)
        self._ids.insert(place, id(table))

    def _remove(self, place: int) -> None:
        del self._sorted[place], self._ids[place]
        num_common = self._num_common.pop(place)
        if place:
            self._num_common[place - 1] = min(self._num_common[place - 1], num_common)


def _num_shared(one: list[int], other: list[int]) -> int:
    """The pages that both tables begin with."""
    return next(compress(count(), map(ne, one, other)), min(len(one), len(other)))


def _runs(num_common: list[int], min_pages: int) -> list[tuple[int, int, int]]:
    """(first, end, pages) of the groups among N sorted requests.

    ``num_common``: [N] the pages that each request shares with the next; 0 for the last.
    """
    runs: list[tuple[int, int, int]] = []
    first = 0
    for last in [place for place, common in enumerate(num_common) if common < min_pages]:
        if last > first:
            links = num_common[first:last]
            fewest = min(links)
            if 2 * fewest >= max(links):
                runs.append((first, last + 1, fewest))
            else:
                runs += _part(links, first)
        first = last + 1
    return runs


def _part(links: list[int], first: int) -> list[tuple[int, int, int]]:
    """The groups among requests from ``first`` on that share so many pages each with the next.

    Neighbours part where they share less than half of what one of them shares with its other neighbour.
    """
    runs: list[tuple[int, int, int]] = []
    start, fewest = 0, sys.maxsize
    for place, (before, here, after) in enumerate(zip([0, *links], [*links, 0], [*links[1:], 0, 0], strict=True)):
        if here > 0 and before <= 2 * here >= after:
            fewest = min(fewest, here)
        else:
            if place > start:
                runs.append((first + start, first + place + 1, fewest))
            start, fewest = place + 1, sys.maxsize
    return runs
