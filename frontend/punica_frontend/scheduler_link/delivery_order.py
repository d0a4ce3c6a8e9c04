"""Which tokens of a step are passed on first. Pure."""

from collections.abc import Iterable, Sequence, Set
from itertools import repeat

from punica_serve.protocol import Deliveries, TokenLogprobs

#: Handle, position, token id and logprobs.
Row = tuple[int, int, int, TokenLogprobs | None]


def first_rows(deliveries: Deliveries, ended: Set[int]) -> tuple[Iterable[Row], Sequence[Row]]:
    """Returns the rows of requests that begin or are ``ended``, and all others. If none are, all rows and no others."""
    offset, positions = deliveries.offset, deliveries.positions
    urgent = set(ended)
    if offset:
        positions = tuple(offset + position for position in positions)
    else:
        urgent.update(handle for handle, position in zip(deliveries.handles, positions, strict=True) if position == 0)
    rows = zip(deliveries.handles, positions, deliveries.token_ids, deliveries.logprobs or repeat(None), strict=False)
    if not urgent:
        return rows, ()
    first: list[Row] = []
    later: list[Row] = []
    for row in rows:
        (first if row[0] in urgent else later).append(row)
    return first, later
