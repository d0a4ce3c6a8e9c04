"""The report of made-up times: overheads, goals, and what is left behind."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from punica_serve.bench.coldstart_series.link_rate import Link, LoadTime
from punica_serve.bench.coldstart_series.series_catalogue import SERIES
from punica_serve.bench.coldstart_series.series_goals import goals_of
from punica_serve.bench.coldstart_series.series_replay import SeriesTimes
from punica_serve.bench.coldstart_series.series_report import make_report
from punica_serve.bench.coldstart_series.series_rows import ROWS
from punica_serve.bench.coldstart_series.series_settings import RowResult, SeriesMeasured, SeriesSettings
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject

#: A load of 64 MB in 50 ms, where a cached first token takes 20.
LOAD = LoadTime(64, 64_000_000, 1, 0.05)
LINK = Link((LOAD,), (LOAD,))
SLOWED = Link((LOAD,), (replace(LOAD, num_copies=4, seconds=0.2),))

SETTINGS = SeriesSettings(series=(SERIES["rank64"],), rows=tuple(ROWS.values()))


def result(row: str, scale: float, *, first_token_s: float | None = None) -> RowResult:
    """Two requests whose times are ``scale`` times those of a cached adapter."""
    times = tuple(
        SeriesTimes(first_token_s or scale * 0.02, per_token_s, scale * latency_s, row == "cached")
        for per_token_s, latency_s in ((scale * 0.01, 0.4), (None, 0.6))
    )
    return RowResult(SERIES["rank64"], ROWS[row], times)


def measured(*results: RowResult, link: Link = LINK) -> SeriesMeasured:
    return SeriesMeasured(results, link)


def test_overheads_are_of_means_over_cached(subject: Subject) -> None:
    report = make_report(subject, SETTINGS, measured(result("cached", 1.0), result("on_demand", 1.5)))
    cached, on_demand = next(table for table in report.tables if table.name == "series").records
    assert cached["first_token_over_cached"] is None and cached["cold_share"] == 0
    for key in ("first_token", "per_token", "latency"):
        assert on_demand[f"{key}_over_cached"] == pytest.approx(50)
    assert (on_demand["latency_ms_mean"], on_demand["latency_ms_p50"]) == pytest.approx((750, 750))
    assert on_demand["cold_share"] == 1 and on_demand["per_token_ms_mean"] == pytest.approx(15)
    assert report.facts == {"share of the latency in cold starts, rank64": pytest.approx(1 / 3)}


def test_without_cached_nothing_is_over_it(subject: Subject) -> None:
    report = make_report(subject, SETTINGS, measured(result("wait", 1.0)))
    (record,) = next(table for table in report.tables if table.name == "series").records
    assert record["latency_over_cached"] is None and record["latency_ms_mean"] == pytest.approx(500)
    assert not report.facts


def test_goals_are_of_the_last_mode() -> None:
    results = [result("cached", 1.0), result("on_demand", 2.0), result("wait", 1.1), result("layerwise", 1.0)]
    met = {goal.bound.figure: (goal.measured, goal.is_met) for goal in goals_of(SETTINGS, measured(*results))}
    assert all(is_met for _, is_met in met.values())
    assert met["first token, % over cached"][0] == pytest.approx(0)
    assert met["latency over the best fixed mode's"][0] == pytest.approx(1 / 1.1)
    assert met["on_demand's latency over it"][0] == pytest.approx(2.0)
    assert {goal.load for goal in goals_of(SETTINGS, measured(*results))} == {"rank64, layerwise"}


def test_short_loads_need_not_be_hidden() -> None:
    results = [result("cached", 1.0), result("on_demand", 1.4), result("wait", 1.4)]
    goals = {goal.bound.figure: goal.measured for goal in goals_of(SETTINGS, measured(*results))}
    assert goals["on_demand's latency over it"] is None and goals["latency over the best fixed mode's"] is None
    assert goals["latency, % over cached"] == pytest.approx(40)


def test_the_papers_goals_are_for_its_projections_and_the_link_as_it_is() -> None:
    results = [result("cached", 1.0), result("wait", 1.1)]
    slowed = {goal.bound.figure for goal in goals_of(SETTINGS, measured(*results, link=SLOWED))}
    assert "latency, % over cached" not in slowed
    on_all = goals_of(replace(SETTINGS, projections="all"), measured(*results))
    assert "latency, % over cached" not in {goal.bound.figure for goal in on_all}


@pytest.mark.parametrize(("link", "unhidden_s"), [(LINK, 0.03), (SLOWED, 0.18)])
def test_on_all_projections_the_part_of_a_copy_that_can_not_be_hidden_is_allowed(link: Link, unhidden_s: float) -> None:
    results = [result("cached", 1.0), result("wait", 1.0, first_token_s=0.02 + unhidden_s + 0.002)]
    goals = goals_of(replace(SETTINGS, projections="all"), measured(*results, link=link))
    (goal,) = [goal for goal in goals if "beyond" in goal.bound.figure]
    assert goal.measured == pytest.approx(10) and not goal.is_met


def test_without_a_mode_there_are_no_goals() -> None:
    assert goals_of(SETTINGS, measured(result("cached", 1.0), result("on_demand", 2.0))) == []


def test_it_leaves_tables_the_papers_figures_and_pictures(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [result(name, 1.0 + number) for number, name in enumerate(ROWS)]
    report = make_report(subject, SETTINGS, measured(*results, link=SLOWED))
    leave(report, tmp_path, Console(width=240))
    shown = capsys.readouterr().out
    assert "emulation" in shown and "CaraServe" in shown and "S-LoRA" in shown
    tables = json.loads((tmp_path / "coldstart-series.json").read_text())["tables"]
    assert [row["row"] for row in tables["series"]] == list(ROWS)
    assert [row["num_copies"] for row in tables["loads"]] == [1, 4]
    assert tables["loads"][1]["gb_per_s"] == pytest.approx(0.32)
    assert tables["paper"][1] == {
        "series": "rank64",
        "system": "S-LoRA",
        "first_token": 451,
        "per_token": 78,
        "latency": 50,
    }
    for name in ("coldstart-series-rank64.png", "coldstart-series-loads.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_link_as_it_is_is_not_called_an_emulation(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(make_report(subject, SETTINGS, measured(result("wait", 1.0))), tmp_path, Console(width=240))
    assert "emulat" not in capsys.readouterr().out


@pytest.mark.parametrize("rows", [["cached"], ["cached", "on_demand"]])
def test_the_share_of_cold_starts_is_drawn_beside_the_loads(subject: Subject, rows: list[str]) -> None:
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure()
    results = [result(name, 1.0 + number) for number, name in enumerate(rows)]
    make_report(subject, SETTINGS, measured(*results)).figures["loads"](figure)
    bars = [own.get_height() for axes in figure.axes for own in axes.patches if isinstance(own, Rectangle)]
    assert bars == ([pytest.approx(50)] if len(rows) > 1 else [])
    (line,) = figure.axes[-1].lines
    assert np.asarray(line.get_data()).tolist() == [[64], [50]]
