"""All rows of small series on a tiny model: who is cold, who is counted, and what becomes of a row that fails."""

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress

from punica_serve.bench import subject as subject_module
from punica_serve.bench.coldstart_series import series_engine
from punica_serve.bench.coldstart_series.series_rows import ROWS, SeriesRow
from punica_serve.bench.coldstart_series.series_run import plan_of, run_series
from punica_serve.bench.coldstart_series.series_settings import SeriesMeasured, SeriesSettings
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError

#: Rows of two modes, whose engines start fast.
_FEW_ROWS = (ROWS["cached"], ROWS["wait"], ROWS["layerwise"])


@pytest.fixture(scope="module")
def subject(subject: Subject) -> Subject:
    """With short answers, so that all rows take seconds."""
    return Subject.of(subject.config.model_copy(update={"max_context": 24}), "cpu")


@pytest.fixture(scope="module", params=[_FEW_ROWS, pytest.param((*ROWS.values(),), marks=pytest.mark.slow)], ids=len)
def rows(request: pytest.FixtureRequest) -> tuple[SeriesRow, ...]:
    chosen: tuple[SeriesRow, ...] = request.param
    return chosen


@pytest.fixture(scope="module")
def measured(subject: Subject, settings: SeriesSettings, rows: tuple[SeriesRow, ...]) -> SeriesMeasured:
    settings = replace(settings, rows=rows)
    return run_series(subject, settings, plan_of(settings), Progress(disable=True))


def test_every_row_of_every_series_runs_the_same_requests(
    measured: SeriesMeasured, settings: SeriesSettings, rows: tuple[SeriesRow, ...]
) -> None:
    assert not measured.failures
    for series in settings.series:
        counts = {result.row.name: len(result.times) for result in measured.of(series)}
        assert counts.keys() == {row.name for row in rows}
        if series.rate_per_s is not None:
            assert set(counts.values()) == {len(plan_of(settings)[series.name])}


def test_only_the_cached_row_is_never_cold(measured: SeriesMeasured) -> None:
    for result in measured.results:
        num_warm = sum(times.was_resident for times in result.times)
        if result.row.is_cached:
            assert num_warm == len(result.times)
        elif result.series.num_adapters is None:
            assert num_warm == 0, "a request whose adapter is on the device already would be no cold start"
        else:
            assert num_warm < len(result.times), "the first request of each adapter is cold"


def test_loads_are_measured_at_the_series_ranks_and_others(measured: SeriesMeasured) -> None:
    assert measured.link is not None and not measured.link.is_emulated
    assert [load.rank for load in measured.link.loads] == [4, 8, 16, 32, 64, 128]
    assert all(load.seconds > 0 and load.num_bytes > 0 for load in measured.link.loads)


def test_an_emulated_link_is_the_same_in_all_modes(
    subject: Subject, settings: SeriesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors: list[int] = []
    monkeypatch.setattr(Engine, "slow_copies", lambda self, factor: factors.append(factor))
    slowed = replace(settings, series=settings.series[:1], rows=_FEW_ROWS, seconds=0.1, link_gb_per_s=1e-4)
    measured = run_series(subject, slowed, plan_of(slowed), Progress(disable=True))
    assert measured.link is not None and measured.link.is_emulated
    num_modes = len({row.mode for row in slowed.rows})
    assert factors == [1, *[measured.link.num_copies] * num_modes]


def test_no_engine_is_left_when_the_next_one_is_made(
    subject: Subject, settings: SeriesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a second one would not fit."""
    made: list[weakref.ref[Engine]] = []

    def make(*args: Any, **settings: Any) -> Engine:
        gc.collect()
        assert not [engine for engine in made if engine() is not None]
        engine = Engine(*args, **settings)
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(subject_module, "Engine", make)
    short = replace(settings, series=settings.series[:1], rows=_FEW_ROWS, seconds=0.1)
    run_series(subject, short, plan_of(short), Progress(disable=True))
    assert len(made) == len({row.mode for row in short.rows}) > 1


@pytest.mark.slow
def test_each_mode_of_a_group_has_a_process_of_its_own(
    tiny_llama: Path, settings: SeriesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the link that was found with the first."""
    monkeypatch.setattr(subject_module, "Engine", None)  # none is made in this process
    config = EngineConfig(model=tiny_llama, dtype="float32", max_context=24, cpu_threads=1, num_kv_pages=64)
    group = Subject.of_group(config, "cpu,cpu")
    short = replace(settings, series=settings.series[:1], rows=_FEW_ROWS, seconds=0.1, link_gb_per_s=1e-4)
    measured = run_series(group, short, plan_of(short), Progress(disable=True))
    assert not measured.failures and measured.link is not None and measured.link.is_emulated
    assert [result.row.name for result in measured.results] == [row.name for row in _FEW_ROWS]


def test_a_row_that_fails_does_not_end_the_others(
    subject: Subject, settings: SeriesSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series_engine, "preload", lambda *_: None)  # so that nothing is cached
    short = replace(settings, series=settings.series[:1], rows=(ROWS["cached"], ROWS["wait"]), seconds=0.1)
    measured = run_series(subject, short, plan_of(short), Progress(disable=True))
    (failure,) = measured.failures
    assert failure.startswith("distinct, cached: the adapter of request distinct-cached-0 is not on the device")
    assert [result.row.name for result in measured.results] == ["wait"]


def test_a_trace_that_no_series_uses_is_refused(settings: SeriesSettings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`--trace` is for the serverless series"):
        plan_of(replace(settings, series=settings.series[:1], trace=tmp_path / "day.csv"))


def test_a_trace_decides_which_adapters_are_asked_for(settings: SeriesSettings, tmp_path: Path) -> None:
    heading = ["HashOwner", "HashApp", "HashFunction", "Trigger", *map(str, range(1, 1441))]
    rows = [["o", "a", f"f{number}", "http", *[str(int(number == 5))] * 1440] for number in range(12)]
    file = tmp_path / "day.csv"
    file.write_text("\n".join(",".join(row) for row in (heading, *rows)))
    plan = plan_of(replace(settings, trace=file))
    assert {arrival.adapter for arrival in plan["serverless"]} == {5}
    assert plan["distinct"] == plan_of(settings)["distinct"]
