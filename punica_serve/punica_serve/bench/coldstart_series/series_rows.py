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


CACHED, ON_DEMAND, CPU_ASSIST = "cached", "on_demand", "cpu_assist"

_ALL = (
    SeriesRow(CACHED, "wait", is_cached=True),
    SeriesRow(ON_DEMAND, "wait", is_blocking=True),
    *(SeriesRow(mode, mode) for mode in get_args(ColdStart)),
)

ROWS: dict[str, SeriesRow] = {row.name: row for row in _ALL}


def parse_series_rows(names: str | None, *, in_group: bool = False) -> tuple[SeriesRow, ...]:
    """Parses names separated by commas; by default all rows that one device has, or a group.

    The order is always that of ``ROWS``. Raises ConfigError for an unknown name, and for CPU processes in a group.
    """
    every = set(ROWS) - {CPU_ASSIST} if in_group else set(ROWS)
    chosen = every if names is None else {name.strip() for name in names.split(",")}
    for name in sorted(chosen):
        if name not in ROWS:
            raise ConfigError(f"row {name!r} does not exist; there are {', '.join(ROWS)}", param="rows")
    if in_group and CPU_ASSIST in chosen:
        raise ConfigError(f"row {CPU_ASSIST!r} is not for groups, which CPU processes don't serve", param="rows")
    return tuple(row for name, row in ROWS.items() if name in chosen)
