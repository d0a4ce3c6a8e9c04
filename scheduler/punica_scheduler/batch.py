"""What a GPU's reports say again and again, looked up once.

From step to step the same requests get their next tokens, until one joins or leaves. So the scheduler remembers which
requests the rows of a report were and where they are. A report that names the same assignments at the next positions
goes on with its batch: it is checked and taken as a whole, and a token costs no look-up of its own. Nor does it touch
its request: the lists of sixteen thousand are spread over more memory than a core's cache holds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from punica_scheduler.capacity import STEPS_AHEAD
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import StepReport

_Column = tuple[Any, ...]


class Share(NamedTuple):
    """The rows of a report whose requests are one frontend's."""

    frontend_id: str
    handles: tuple[int, ...]
    #: Before any step of the batch.
    positions: tuple[int, ...]
    #: Of a column of the report, the share's part.
    pick: Callable[[_Column], _Column]


def shares_of(rows: Iterable[tuple[int, int, RequestRecord]], num_rows: int) -> list[Share]:
    """Who gets which rows of a report of so many; ``rows`` are those that someone gets: index, position, request."""
    by_frontend: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for index, position, record in rows:
        by_frontend[record.frontend_id].append((index, record.handle, position))
    shares = []
    for frontend_id, own in by_frontend.items():
        indices, handles, positions = zip(*own, strict=True)
        shares.append(Share(frontend_id, handles, positions, _picker(indices, num_rows)))
    return shares


def _picker(indices: Sequence[int], num_rows: int) -> Callable[[_Column], _Column]:
    if len(indices) == num_rows:
        return _all
    if len(indices) == 1:
        return lambda column: (column[indices[0]],)
    return itemgetter(*indices)


def _all(column: _Column) -> _Column:
    return column


class Batch:
    """The requests that each step of a GPU gives a token, a row each, while all of them are in its working set.

    It holds the tokens of its time, a column for each step, and gives them to the requests when it ends.
    """

    __slots__ = (
        "_columns",
        "_next_repeat",
        "_page_size",
        "_turns",
        "gpu_s",
        "max_steps",
        "num_steps",
        "records",
        "shares",
    )

    def __init__(
        self, positions: tuple[int, ...], records: list[RequestRecord], num_repeats: int, page_size: int
    ) -> None:
        """Rows must be of different requests, at their next positions; ``num_repeats`` is of the first report."""
        self.records = records
        self.shares = shares_of(zip(range(len(records)), positions, records, strict=True), len(records))
        self._next_repeat = num_repeats + 1
        #: Taken so far.
        self.num_steps = 0
        #: GPU time of each row.
        self.gpu_s = 0.0
        self._columns: list[tuple[int, ...]] = []
        #: Until a request has all its tokens: what comes then is looked at row by row.
        self.max_steps = min([record.max_tokens - at for record, at in zip(records, positions, strict=True)])
        self._page_size = page_size
        #: A request needs a page more ahead every ``page_size`` steps: the step from which on it no longer does, by its
        #: turn among them.
        self._turns: defaultdict[int, list[int]] = defaultdict(list)
        for record, at in zip(records, positions, strict=True):
            ahead = at + STEPS_AHEAD
            self._turns[-(record.num_prompt + ahead) % page_size].append(record.max_tokens - ahead)

    def begin(self) -> None:
        """From now on what it takes are the requests' tokens, until it ends."""
        for record in self.records:
            record.batch = self

    def is_continued_by(self, report: StepReport) -> bool:
        """Whether the report is of the same requests, each at its next position, with none too many."""
        return (
            report.num_repeats == self._next_repeat
            and len(report.token_ids) == len(self.records)
            and self.num_steps < self.max_steps
        )

    def take(self, report: StepReport) -> int:
        """The tokens of a report that continues the batch; returns how many pages more its requests need ahead."""
        step = self.num_steps
        num_pages = sum(map(step.__lt__, self._turns.get(step % self._page_size, ())))
        self._columns.append(report.token_ids)
        self.num_steps += 1
        self._next_repeat = report.num_repeats + 1
        self.gpu_s += report.duration_s / len(self.records)
        return num_pages

    def end(self) -> None:
        """Gives each request what is its own."""
        for record, token_ids in zip(self.records, zip(*self._columns, strict=True), strict=True):
            record.generated_ids += token_ids
            record.gpu_s += self.gpu_s
            record.batch = None
