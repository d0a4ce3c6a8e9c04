"""The rows that decode, as columns with one clock.

Every row gets a token at every step, so only the clock changes between two steps: positions, token ids and pages follow
from it. A step then costs little more than the tuples of its report, and no object for each token.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from punica_serve.paging.page_rule import PageRule
from punica_serve.performance.lora_load import LoraAccount
from punica_serve.simulation.row import Row
from punica_serve.simulation.tokens import TOKEN_STRIDE


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns that stay the same while no row joins or leaves."""

    keys: tuple[int, ...]
    #: Position - clock, for each row.
    positions: list[int]
    #: Token id - TOKEN_STRIDE * clock, reduced by the vocabulary's size.
    token_ids: list[int]


class DecodeBatch:
    """Rows join and leave between two steps. Before ``advance``, call ``grow`` with ``num_pages_due`` pages at hand.

    Under a window, take the rows that are ``releasing`` before that: their pages go back, and they join again.
    """

    def __init__(self, rule: PageRule, *, vocab_size: int) -> None:
        self._rule = rule
        self._page_size = rule.page_size
        self._vocab_size = vocab_size
        self._clock = 0
        self._rows: dict[int, Row] = {}
        self._columns: _Columns | None = None
        #: Tokens of all rows, minus the clock for each.
        self._num_tokens_base = 0
        #: Clock -> number of rows that need a page then.
        self._growth: Counter[int] = Counter()
        #: Clock -> rows that get their last token then.
        self._ends: defaultdict[int, list[Row]] = defaultdict(list)
        #: Clock -> rows that give pages back before the step then; only under a window.
        self._releases: defaultdict[int, list[Row]] = defaultdict(list)
        #: The adapters of the rows.
        self.lora = LoraAccount()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: int) -> bool:
        return key in self._rows

    @property
    def num_context_tokens(self) -> int:
        """Keys of all rows that the next step reads."""
        return self._num_tokens_base + self._clock * len(self._rows)

    @property
    def num_pages_due(self) -> int:
        """Pages that the next step needs besides those that the rows hold."""
        return self._growth.get(self._clock, 0)

    @property
    def num_pages(self) -> int:
        """Pages that the rows hold."""
        return sum(row.num_pages - row.num_released + self._num_growths(row) for row in self._rows.values())

    @property
    def newest(self) -> Row | None:
        return max(self._rows.values(), key=_by_arrival, default=None)

    def rows_due(self) -> list[Row]:
        """Rows that need a page for the next step, by arrival."""
        due = [row for row in self._rows.values() if self._next_growth(row) == self._clock]
        return sorted(due, key=_by_arrival)

    def join(self, row: Row) -> None:
        """Adds a row, which must be decoding, to the next step."""
        row.joined = self._clock
        row.position_offset = row.position - self._clock
        row.token_offset = (row.next_token - self._clock * TOKEN_STRIDE) % self._vocab_size
        self._rows[row.key] = row
        self._num_tokens_base += row.num_tokens - self._clock
        self._growth[self._next_growth(row)] += 1
        self._ends[self._end(row)].append(row)
        if self._rule.window is not None:
            self._releases[self._release(row)].append(row)
        if row.digest is not None and row.adapter_size is not None:
            self.lora.add(row.digest, row.adapter_size)
        self._columns = None

    def leave(self, key: int) -> Row:
        """Removes a row, and updates its own numbers."""
        return self._take(self._rows.pop(key))

    def releasing(self) -> list[Row]:
        """Rows of whose first pages the next step reads nothing. Their own numbers are up to date until they join."""
        return [self._take(row) for row in tuple(self._releases.get(self._clock, ()))]

    def grow(self) -> None:
        """Gives each row that needs a page one more."""
        if self._clock in self._growth:
            self._growth[self._clock + self._page_size] += self._growth.pop(self._clock)

    def advance(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], list[Row]]:
        """Gives every row a token. Returns keys, positions and token ids, and the rows that have ended, now removed."""
        columns = self._columns or self._make_columns()
        clock, vocab_size = self._clock, self._vocab_size
        shift = clock * TOKEN_STRIDE % vocab_size
        positions = tuple([clock + offset for offset in columns.positions])
        token_ids = tuple([(shift + offset) % vocab_size for offset in columns.token_ids])
        self._clock += 1
        ended = self._ends.pop(clock, [])
        for row in ended:
            self._forget_release(row)
            self._settle(self._rows.pop(row.key))
        return columns.keys, positions, token_ids, ended

    def _take(self, row: Row) -> Row:
        """Subtracts a row that does not end now."""
        ending = self._ends[self._end(row)]
        ending.remove(row)
        if not ending:
            del self._ends[self._end(row)]
        self._forget_release(row)
        return self._settle(row)

    def _forget_release(self, row: Row) -> None:
        if self._rule.window is not None:
            releasing = self._releases[self._release(row)]
            releasing.remove(row)
            if not releasing:
                del self._releases[self._release(row)]

    def _settle(self, row: Row) -> Row:
        """Subtracts a row from the sums, and updates its own numbers."""
        next_growth = self._next_growth(row)
        self._growth[next_growth] -= 1
        if not self._growth[next_growth]:
            del self._growth[next_growth]
        if row.digest is not None and row.adapter_size is not None:
            self.lora.remove(row.digest, row.adapter_size)
        self._num_tokens_base -= row.num_tokens - row.joined
        row.num_pages += self._num_growths(row)
        row.num_tokens += self._clock - row.joined
        row.num_cached = row.num_tokens - 1
        self._columns = None
        return row

    def _make_columns(self) -> _Columns:
        rows = self._rows.values()
        positions = [row.position_offset for row in rows]
        token_ids = [row.token_offset for row in rows]
        self._columns = _Columns(tuple(self._rows), positions, token_ids)
        return self._columns

    def _end(self, row: Row) -> int:
        """The clock of the step that makes the row's last token."""
        return row.joined + row.max_length - row.num_tokens - 1

    def _release(self, row: Row) -> int:
        """The clock of the first step before which the row gives a page back."""
        num_cached = row.num_tokens - 1
        return row.joined + max(0, self._rule.next_release(row.num_released) - num_cached)

    def _first_growth(self, row: Row) -> int:
        """The clock of the step that first needs a page beyond those that the row joined with."""
        return row.joined + row.num_pages * self._page_size + 1 - row.num_tokens

    def _num_growths(self, row: Row) -> int:
        """Pages that the row got since it joined, in all steps before the next one."""
        return max(0, -(-(self._clock - self._first_growth(row)) // self._page_size))

    def _next_growth(self, row: Row) -> int:
        return self._first_growth(row) + self._num_growths(row) * self._page_size


def _by_arrival(row: Row) -> tuple[int, str]:
    return row.arrival
