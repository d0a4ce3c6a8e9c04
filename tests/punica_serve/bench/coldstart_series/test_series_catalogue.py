import pytest

from punica_serve.bench.coldstart_series.series_catalogue import SERIES, parse_series
from punica_serve.bench.reference_figures import peers
from punica_serve.errors import ConfigError


def test_names_become_series_once_each() -> None:
    assert [series.name for series in parse_series("full, rank64,full")] == ["full", "rank64"]


@pytest.mark.parametrize("names", ["", "rank64,,full", "rank 64", "RANK64"])
def test_unknown_names_are_refused_with_the_known_ones(names: str) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; there are rank64, rank32, .*, full"):
        parse_series(names)


def test_the_papers_figures_are_for_series_that_exist() -> None:
    assert peers().coldstart_series.overheads.keys() < SERIES.keys()
    assert peers().coldstart_series.overheads["rank64"]["S-LoRA"].latency == 50


def test_loads_in_words() -> None:
    assert (SERIES["serverless512"].load, SERIES["rank64"].load) == ("7.7/s", "9/s")
    assert SERIES["full"].load == "24 at a time"
