"""The page tables of requests as arrays, of which a step converts only the pages that are new to it.

A decode gets a page once in so many tokens, while its table of a long context has hundreds of them.
"""

from collections.abc import Sequence

import numpy as np

from punica_serve.engine.cuda.step_input_buffer import Int32s

NO_PAGES: Int32s = np.zeros(0, np.int32)


class PageArrays:
    """The arrays of the newest step's page tables. A table is known by its identity, since it grows."""

    def __init__(self) -> None:
        #: As long as these are held, no other list has the identity of one.
        self._tables: Sequence[list[int]] = ()
        self._arrays: dict[int, Int32s] = {}

    def of(self, tables: Sequence[list[int]], counts: Sequence[int]) -> list[Int32s]:
        """The first pages of each table, so many of them.

        Between two calls pages may be appended to a list; whatever else changes comes in a new list.
        ValueError: a table has too few pages.
        """
        known = self._arrays
        arrays = [known.get(id(table), NO_PAGES) for table in tables]
        for row, (array, count) in enumerate(zip(arrays, counts, strict=True)):
            if len(array) != count:
                arrays[row] = _resize(array, tables[row], count)
        self._tables, self._arrays = tables, dict(zip(map(id, tables), arrays, strict=True))
        return arrays


def _resize(array: Int32s, table: list[int], count: int) -> Int32s:
    """``array`` has the first pages of the table."""
    if len(table) < count:
        raise ValueError(f"a request of {count} pages has {len(table)}")
    return np.concatenate([array[:count], np.array(table[len(array) : count], np.int32)])
