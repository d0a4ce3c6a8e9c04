"""The options of the benchmark, and its results."""

from dataclasses import dataclass
from pathlib import Path

from punica_serve.bench.coldstart_series.link_rate import Link
from punica_serve.bench.coldstart_series.series_catalogue import Series
from punica_serve.bench.coldstart_series.series_replay import SeriesTimes
from punica_serve.bench.coldstart_series.series_rows import SeriesRow
from punica_serve.bench.host_adapters import Projections

#: Ranks whose load is measured, whatever the series (figure 3 of the paper).
_LOAD_RANKS = (8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class SeriesSettings:
    """The options."""

    series: tuple[Series, ...]
    rows: tuple[SeriesRow, ...]
    #: Time in which requests arrive.
    seconds: float = 60.0
    #: The paper's, or all seven.
    projections: Projections = "qkv"
    #: The link's rate, which is emulated; None leaves it as it is.
    link_gb_per_s: float | None = None
    #: Requests in one step.
    batch_size: int = 32
    #: Adapters of each rank whose bytes are in host memory; as many are on the device at a time.
    num_adapters: int = 64
    #: Day of the Azure Functions trace for the serverless series, instead of a generated one.
    trace: Path | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({series.rank for series in self.series}))

    @property
    def num_by_rank(self) -> dict[int, int]:
        """Adapters with bytes of their own, by rank: one where only the load is measured."""
        return {rank: self.num_adapters if rank in self.ranks else 1 for rank in sorted({*self.ranks, *_LOAD_RANKS})}

    @property
    def deadline_s(self) -> float:
        """A row that takes longer is given up: its load is more than it can bear."""
        return 3 * self.seconds + 60


@dataclass(frozen=True, slots=True)
class RowResult:
    """The requests of one row of a series."""

    series: Series
    row: SeriesRow
    times: tuple[SeriesTimes, ...]


@dataclass(frozen=True, slots=True)
class SeriesMeasured:
    """All results."""

    results: tuple[RowResult, ...]
    #: None without rows.
    link: Link | None
    #: Rows that could not be measured, and why.
    failures: tuple[str, ...] = ()

    def of(self, series: Series) -> tuple[RowResult, ...]:
        return tuple(result for result in self.results if result.series == series)
