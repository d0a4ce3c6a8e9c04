"""The rows that a GPU's reports repeat step after step, looked up once.

The same requests get their next tokens from step to step, until one joins or leaves. So the scheduler remembers the
request and position of each row. A report for the same assignments at the next positions continues them: it is
checked and applied as a whole, and a token costs no look-up of its own. It does not touch its request either: the token
lists of sixteen thousand requests do not fit a core's cache.
"""

import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from msgspec import Struct

from punica_scheduler.core.capacity import STEPS_AHEAD
from punica_scheduler.core.request import TOKEN_TYPE, RequestRecord
from punica_serve.paging.page_rule import PageRule
from punica_serve.protocol import StepReport

_Column = tuple[Any, ...]


class Share(Struct, frozen=True):
    """The rows of a report whose requests are one frontend's."""

    frontend_id: str
    handles: tuple[int, ...]
    #: Before any step of these rows.
    positions: tuple[int, ...]
    #: Picks the share's rows from a column of the report.
    pick: Callable[[_Column], _Column]


def shares_of(rows: Sequence[int], records: Sequence[RequestRecord], positions: _Column) -> list[Share]:
    """Splits rows of a report by frontend. ``rows``, ``records`` and ``positions`` belong together."""
    by_frontend: defaultdict[str, list[int]] = defaultdict(list)
    for index, record in enumerate(records):
        by_frontend[record.frontend_id].append(index)
    handles = tuple([record.handle for record in records])
    shares = []
    for frontend_id, indices in by_frontend.items():
        own = _picker(indices)
        shares.append(Share(frontend_id, own(handles), own(positions), _picker([rows[index] for index in indices])))
    return shares


def _picker(indices: Sequence[int]) -> Callable[[_Column], _Column]:
    if len(indices) == 1:
        return lambda column: (column[indices[0]],)
    return itemgetter(*indices)


@lru_cache(maxsize=1024)
def _packer(num_rows: int) -> Callable[..., bytes]:
    """Makes an array's bytes of a step's tokens."""
    return struct.Struct(f"{num_rows}{TOKEN_TYPE}").pack


class RepeatedRows:
    """The requests that each step of a GPU gives a token, a row each, while all of them are in its working set.

    It holds the tokens of its time, step after step, and gives them to the requests when it ends.
    """

    __slots__ = (
        "_all_grow_until",
        "_grows_until",
        "_next_repeat",
        "_num_given_back",
        "_num_left",
        "_pack",
        "_page_size",
        "_steps",
        "_turns",
        "gpu_s",
        "max_steps",
        "newcomers",
        "num_steps",
        "records",
        "shares",
    )

    def __init__(
        self, positions: tuple[int, ...], records: list[RequestRecord], num_repeats: int, rule: PageRule
    ) -> None:
        """Rows must be of different requests, at their next positions; ``num_repeats`` is of the first report."""
        self.records = records
        self._next_repeat = num_repeats + 1
        #: Taken so far.
        self.num_steps = 0
        #: GPU time of each row.
        self.gpu_s = 0.0
        #: The tokens of each step, an array's bytes. One array of all would be copied again and again as it grows.
        self._steps: list[bytes] = []
        self._pack = _packer(len(records))
        self._page_size = rule.page_size
        rows = list(zip(records, positions, strict=True))
        #: Steps until it has all its tokens.
        self._num_left = [record.max_tokens - at for record, at in rows]
        ahead = [record.num_prompt + at + STEPS_AHEAD for record, at in rows]
        most_tokens = rule.most_decoding_pages * rule.page_size
        growths = [
            (-num_tokens % rule.page_size, min(left - STEPS_AHEAD, most_tokens - num_tokens))
            for num_tokens, left in zip(ahead, self._num_left, strict=True)
        ]
        #: A row needs a page more ahead every ``page_size`` steps: its turn among them.
        self._turns = [turn for turn, end in growths if end > 0]
        #: It needs no more after so many steps: those that are ahead need none, nor does a row behind its window.
        self._grows_until = [end for _, end in growths if end > 0]
        self._all_grow_until = min(self._grows_until, default=0)
        #: Until a request has all its tokens: what comes then is looked at row by row.
        self.max_steps = min(self._num_left)
        #: Requests that get their first token of this assignment in these steps.
        self.newcomers = [record for record, at in rows if at == record.num_generated_at_start]
        #: Pages that the chunks of their prompts took beside their windows, less than zero: they are free from now on.
        self._num_given_back = sum(
            rule.held_decoding(num_tokens) - rule.held_by(num_tokens)
            for num_tokens in [record.num_tokens_after(STEPS_AHEAD) for record in self.newcomers]
        )
        self.shares = shares_of(range(len(records)), records, positions)

    def begin(self) -> None:
        """Makes itself the owner of its requests' new tokens, until ``end``."""
        RequestRecord.join_rows(self.records, self)

    def is_continued_by(self, report: StepReport) -> bool:
        """Whether the report is of the same requests, each at its next position, with none too many."""
        return (
            report.num_repeats == self._next_repeat
            and len(report.token_ids) == len(self.records)
            and self.num_steps < self.max_steps
        )

    def take(self, report: StepReport) -> int:
        """Applies a report that repeats the rows; returns how many more pages its requests need ahead."""
        step = self.num_steps
        num_pages = self._num_pages_at(step) + (0 if step else self._num_given_back)
        self._steps.append(self._pack(*report.token_ids))
        self.num_steps = step + 1
        self._next_repeat = report.num_repeats + 1
        self.gpu_s += report.duration_s / len(self.records)
        return num_pages

    def ending(self) -> list[RequestRecord]:
        """Requests that get their last token within STEPS_AHEAD more steps, unless they are preempted."""
        last = self.num_steps + STEPS_AHEAD
        if last < self.max_steps:
            return []
        rows = zip(self.records, self._num_left, strict=True)
        return [record for record, left in rows if self.num_steps < left <= last]

    def _num_pages_at(self, step: int) -> int:
        turn = step % self._page_size
        if step < self._all_grow_until:
            return self._turns.count(turn)
        rows = zip(self._turns, self._grows_until, strict=True)
        return len([None for own, end in rows if own == turn and step < end])

    def end(self) -> None:
        """Hands each request its tokens and GPU time."""
        RequestRecord.leave_rows(self.records, array(TOKEN_TYPE, b"".join(self._steps)), self.gpu_s)
