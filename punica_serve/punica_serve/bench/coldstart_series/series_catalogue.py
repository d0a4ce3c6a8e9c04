"""The series of CaraServe's evaluation: how often requests arrive, and which adapters they ask for."""

from dataclasses import dataclass

from punica_serve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Series:
    """One kind of load."""

    name: str
    rank: int
    #: Arrivals per second, by a Poisson process; None if a request arrives when another ends.
    rate_per_s: float | None
    #: Adapters of a serverless trace; None if every request has an adapter of its own.
    num_adapters: int | None = None
    #: Requests at any time in a series without a rate.
    num_in_flight: int = 0

    @property
    def load(self) -> str:
        """The arrivals, in words."""
        return f"{self.num_in_flight} at a time" if self.rate_per_s is None else f"{self.rate_per_s:g}/s"


_ALL = (
    Series("rank64", 64, 9.0),
    Series("rank32", 32, 9.0),
    Series("rank64-slow", 64, 6.0),
    Series("serverless128", 64, 1.5, num_adapters=128),
    Series("serverless256", 64, 3.6, num_adapters=256),
    Series("serverless512", 64, 7.7, num_adapters=512),
    Series("full", 64, None, num_in_flight=24),
)

SERIES: dict[str, Series] = {series.name: series for series in _ALL}


def parse_series(names: str) -> tuple[Series, ...]:
    """Parses names separated by commas. Raises ConfigError for an unknown one."""
    chosen = tuple(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in SERIES:
            raise ConfigError(f"series {name!r} does not exist; there are {', '.join(SERIES)}", param="series")
    return tuple(SERIES[name] for name in chosen)
