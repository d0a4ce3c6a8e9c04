"""The lists that all rows of a series share: fixed, in order, and as frequent as the series says."""

import pytest

from punica_serve.bench.coldstart_series.arrival_list import arrival_list
from punica_serve.bench.coldstart_series.series_catalogue import SERIES, Series


@pytest.mark.parametrize("series", SERIES.values(), ids=lambda series: series.name)
def test_lists_are_fixed_and_in_order(series: Series) -> None:
    arrivals = arrival_list(series, 20)
    assert arrivals == arrival_list(series, 20)
    due_s = [arrival.due_s for arrival in arrivals]
    assert due_s == sorted(due_s) and due_s[-1] < 20
    assert all(arrival.length.prompt >= 4 and arrival.length.output >= 4 for arrival in arrivals)


@pytest.mark.parametrize("name", ["rank64", "rank64-slow", "serverless512"])
def test_arrivals_are_as_frequent_as_the_series_says(name: str) -> None:
    series = SERIES[name]
    assert series.rate_per_s is not None
    assert len(arrival_list(series, 300)) / 300 == pytest.approx(series.rate_per_s, rel=0.1)


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = arrival_list(SERIES["rank64"], 10), arrival_list(SERIES["rank64"], 20)
    assert [arrival.due_s for arrival in short] == [arrival.due_s for arrival in long[: len(short)]]


@pytest.mark.parametrize("name", ["rank64", "rank32", "full"])
def test_every_request_has_an_adapter_of_its_own(name: str) -> None:
    adapters = [arrival.adapter for arrival in arrival_list(SERIES[name], 10)]
    assert adapters == list(range(len(adapters)))


def test_serverless_adapters_repeat_and_differ() -> None:
    adapters = [arrival.adapter for arrival in arrival_list(SERIES["serverless128"], 300)]
    assert 20 < len(set(adapters)) <= 128 and max(adapters) < 128 and len(adapters) > 2 * len(set(adapters))


def test_shares_of_a_trace_count_minute_by_minute() -> None:
    series = Series("x", 8, 1.0, num_adapters=2)
    arrivals = arrival_list(series, 180, shares=[[1.0, 0.0], [0.0, 1.0]])
    for arrival in arrivals:
        assert arrival.adapter == (1 if 60 <= arrival.due_s < 120 else 0), "the first minute follows the last"
    assert {arrival.adapter for arrival in arrivals} == {0, 1}


def test_even_a_very_short_run_has_a_request() -> None:
    assert len(arrival_list(SERIES["serverless128"], 0.001)) == 1
