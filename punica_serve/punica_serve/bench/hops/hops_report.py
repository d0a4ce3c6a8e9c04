"""The report of `bench hops`."""

from collections.abc import Mapping, Sequence
from typing import Any

from punica_serve.bench.hops.hop_times import includes
from punica_serve.bench.percentiles import percentiles_ms
from punica_serve.bench.report import Column, Report, TableData, Value, host_facts

_COLUMNS = (
    Column("hop", "hop"),
    Column("p10_ms", "p10 ms", ",.2f"),
    Column("p50_ms", "p50 ms", ",.2f"),
    Column("p90_ms", "p90 ms", ",.2f"),
    Column("includes", "includes"),
)


def hops_report(times_s: Mapping[str, Sequence[float]], settings: Mapping[str, Any], load: str) -> Report:
    """A table of the hops that were measured."""
    rows: list[tuple[Value, ...]] = [
        (hop, *percentiles_ms(times, 10, 50, 90), includes(hop)) for hop, times in times_s.items() if times
    ]
    table = TableData("hops", f"hops of a request: {load}", _COLUMNS, rows)
    return Report(name="hops", machine=host_facts(), settings=settings, tables=[table])
