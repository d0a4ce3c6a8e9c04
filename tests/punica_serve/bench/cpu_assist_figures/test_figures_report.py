"""The report of made-up times."""

from pathlib import Path

import pytest
from rich.console import Console

from punica_serve.bench.cpu_assist_figures.figure_settings import (
    AssistedPrefillTime,
    FigureSettings,
    FiguresMeasured,
    LayerTime,
    RoundTrip,
)
from punica_serve.bench.cpu_assist_figures.figures_report import make_report
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig

TRIPS = [RoundTrip("shared memory", 1, 0.001), RoundTrip("sockets", 1, 0.002)]
LAYERS = [LayerTime("processes", 1, 0.004), LayerTime("processes", 2, 0.002)]
LAYERS += [LayerTime("threads", 1, 0.004), LayerTime("threads", 2, 0.003)]
PREFILLS = [AssistedPrefillTime("sync-free", 2, 0.010), AssistedPrefillTime("synchronous", 2, 0.012)]


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    return Subject.of(EngineConfig(model=tiny_llama, dtype="float32"), "cpu")


def test_ratios_are_of_the_most_processes(subject: Subject) -> None:
    report = make_report(subject, FigureSettings(), FiguresMeasured(TRIPS, LAYERS, PREFILLS))
    assert report.facts == pytest.approx(
        {"sockets / shared memory, 1": 2.0, "threads / processes, 2": 1.5, "synchronous / sync-free, 2": 1.2}
    )


def test_without_a_gpu_a_figure_is_named_as_not_measured(subject: Subject, tmp_path: Path) -> None:
    report = make_report(subject, FigureSettings(), FiguresMeasured(TRIPS, LAYERS, []))
    assert [table.name for table in report.tables] == ["round-trips", "layers"]
    assert any("figure 16" in note for table in report.tables for note in table.notes)
    written = {path.name for path in leave(report, tmp_path, Console(quiet=True))}
    assert written == {"cpu-assist.json", "cpu-assist-round-trips.png", "cpu-assist-layers.png"}


@pytest.mark.parametrize(("counts", "missing"), [((1, 2), ""), ((1, 2, 4, 8), "with 4, 8 processes: not measured")])
def test_processes_that_could_not_be_had_are_named_as_not_measured(
    subject: Subject, counts: tuple[int, ...], missing: str
) -> None:
    report = make_report(subject, FigureSettings(counts=counts), FiguresMeasured(TRIPS, LAYERS, []))
    notes = [note for table in report.tables for note in table.notes if "figures 16 and 18" in note]
    assert len(notes) == bool(missing) and all(missing in note for note in notes)
