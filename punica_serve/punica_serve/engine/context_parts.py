"""Long contexts divided, for attention kernels that give each request to one block: the longest would be late.

Plain numpy, on the host.
"""

from bisect import bisect_left

import numpy as np

from punica_serve.engine.step_pages import PageRuns
from punica_serve.engine.step_words import Int32s

#: Shorter parts cost more to merge than they save.
_MIN_PART_TOKENS = 128


def divide_longest(runs: PageRuns, num_copies: int, *, page_size: int, null_page: int) -> tuple[PageRuns, Int32s]:
    """Requests as parts that are as short as ``num_copies`` more of them allow.

    First come the first parts of all requests, in order; then the other parts, request by request, and padding up to
    their number, which reads one token of the null page. Beside them int32 [requests + 1]: whose parts those others
    are, as ``punica_kernels.merge_attention`` takes it.
    """
    num_pages = np.diff(runs.indptr)
    part_pages = max(_shortest_part(num_pages, num_copies), -(-_MIN_PART_TOKENS // page_size))
    num_others = (num_pages - 1) // part_pages
    starts = np.zeros(len(num_pages) + 1, dtype=np.int32)
    np.cumsum(num_others, out=starts[1:])
    requests = np.arange(len(num_pages))
    owners = np.concatenate([requests, np.repeat(requests, num_others)])
    numbers = np.concatenate([np.zeros_like(requests), np.arange(starts[-1]) - np.repeat(starts[:-1], num_others) + 1])
    first_pages = numbers * part_pages
    counts = np.minimum(num_pages[owners] - first_pages, part_pages)
    lengths = np.minimum(runs.lengths[owners] - first_pages * page_size, part_pages * page_size)
    places = np.repeat(runs.indptr[owners] + first_pages - (np.cumsum(counts) - counts), counts) + np.arange(
        counts.sum()
    )
    padding = np.ones(num_copies - starts[-1], dtype=np.int32)
    lengths, counts = (np.append(column, padding).astype(np.int32) for column in (lengths, counts))
    indices = np.append(runs.indices[places], padding * null_page).astype(np.int32)
    return PageRuns.of(lengths, counts, indices, page_size), starts


def _shortest_part(num_pages: Int32s, num_copies: int) -> int:
    """The fewest pages that a part may have, so that there are at most ``num_copies`` more parts than requests."""
    sizes = range(1, int(num_pages.max()) + 1)
    return sizes[bisect_left(sizes, True, key=lambda size: int(((num_pages - 1) // size).sum()) <= num_copies)]
