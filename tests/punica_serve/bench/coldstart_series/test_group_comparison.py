"""Figure 15, of made-up times of a group."""

from dataclasses import replace

import pytest

from punica_serve.base_model.rank import Rank
from punica_serve.bench.coldstart_series.group_comparison import comparison_goals, comparison_table
from punica_serve.bench.coldstart_series.series_catalogue import SERIES
from punica_serve.bench.coldstart_series.series_replay import SeriesTimes
from punica_serve.bench.coldstart_series.series_rows import ROWS
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured, SeriesSettings
from punica_serve.bench.subject import Subject

_SERIES = SERIES["rank64-slow"]
_SETTINGS = SeriesSettings((_SERIES,), tuple(ROWS.values()))


def _measured(**latencies_s: float) -> SeriesMeasured:
    times = {row: (SeriesTimes(0.1, None, latency_s, was_resident=False),) for row, latency_s in latencies_s.items()}
    return SeriesMeasured(tuple(RowResult(_SERIES, ROWS[row], each) for row, each in times.items()), None)


@pytest.fixture
def group(subject: Subject) -> Subject:
    model = replace(subject.model.shard(Rank(0, 2)), name="llama-2-13b")
    return replace(subject, model=model, group="cpu,cpu")


def test_each_mode_is_beside_on_demand_and_the_paper(group: Subject) -> None:
    table = comparison_table(group, _SETTINGS, _measured(cached=1.0, on_demand=2.0, wait=1.8, layerwise=1.4, auto=1.2))
    rows = {row["row"]: (row["latency_below"], row["overhead_share"]) for row in table.records}
    assert rows == {
        "wait": pytest.approx((10, 0.8)),
        "layerwise": pytest.approx((30, 0.4)),
        "auto": pytest.approx((40, 0.2)),
    }
    assert "20.2 % below OnDemand's" in table.notes[0]
    assert not comparison_table(replace(group, group=None), _SETTINGS, _measured(on_demand=2.0, auto=1.0)).rows


def test_half_of_the_overhead_is_the_goal() -> None:
    measured = _measured(cached=1.0, on_demand=2.0, wait=1.9, layerwise=1.4, auto=1.6)
    assert [goal.is_met for goal in comparison_goals(_SETTINGS, measured)] == [True, False]


def test_without_an_overhead_or_without_cached_there_is_no_share() -> None:
    for measured in (_measured(cached=1.0, on_demand=1.0, auto=1.0), _measured(on_demand=1.0, auto=1.0)):
        (goal,) = comparison_goals(_SETTINGS, measured)
        assert goal.measured is None
