"""The rows of a series: the ways in which adapters come to the device."""

from dataclasses import dataclass
from typing import get_args

from punica_serve.config.engine_section import ColdStart
from punica_serve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """One way to load adapters."""

    name: str
    #: `engine.cold_start` of its engine.
    mode: ColdStart
    #: Its adapters are on the device before they are asked for.
    is_cached: bool = False
    #: A load begins between two steps, and the next step waits for it.
    is_blocking: bool = False


CACHED, ON_DEMAND = "cached", "on_demand"

_ALL = (
    SeriesRow(CACHED, "wait", is_cached=True),
    SeriesRow(ON_DEMAND, "wait", is_blocking=True),
    *(SeriesRow(mode, mode) for mode in get_args(ColdStart)),
)

ROWS: dict[str, SeriesRow] = {row.name: row for row in _ALL}


def parse_series_rows(names: str | None) -> tuple[SeriesRow, ...]:
    """Parses names separated by commas; all rows by default. The order is always that of ``ROWS``.

    Raises ConfigError for an unknown name.
    """
    chosen = set(ROWS) if names is None else {name.strip() for name in names.split(",")}
    for name in sorted(chosen):
        if name not in ROWS:
            raise ConfigError(f"row {name!r} does not exist; there are {', '.join(ROWS)}", param="rows")
    return tuple(row for name, row in ROWS.items() if name in chosen)
