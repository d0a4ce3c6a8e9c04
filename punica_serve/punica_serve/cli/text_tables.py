"""Tables that commands print: lists of things, and figures of several runs side by side."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

#: Characters of a line that no terminal shows: enough for every list.
_UNSEEN_WIDTH = 400


def print_list(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table of plain texts to standard output; what looks like markup in them is shown unchanged.

    Only a terminal's width shortens them: what another program reads is whole.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False, width=None if sys.stdout.isatty() else _UNSEEN_WIDTH).print(table)


def figures_table(runs: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]) -> "Table":
    """A right-justified column for each run; a row is the name of a figure and its value in each run."""
    from rich.table import Column, Table

    table = Table("", *(Column(run, justify="right") for run in runs))
    for name, values in rows:
        table.add_row(name, *values)
    return table
