"""The figures that need no GPU, and on a GPU all of them, on a tiny model."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.cpu_assist_figures.figure_settings import FigureSettings
from punica_serve.bench.cpu_assist_figures.figures_run import run_figures
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError

SETTINGS = FigureSettings(num_tokens=8, rank=8, counts=(1,), num_repeats=2)


def _subject(model: Path, device: str) -> Subject:
    return Subject.of(EngineConfig(model=model, dtype="float32"), device)


@pytest.mark.slow
def test_a_cpu_measures_round_trips_and_layers(tiny_llama: Path) -> None:
    measured = run_figures(_subject(tiny_llama, "cpu"), SETTINGS, Progress(disable=True))
    assert {trip.way for trip in measured.round_trips} == {"shared memory", "sockets"}
    assert [(layer.workers, layer.num_cores) for layer in measured.layers] == [("processes", 1), ("threads", 1)]
    assert all(layer.seconds > 0 for layer in measured.layers)
    assert not measured.prefills and not measured.failures


@pytest.mark.gpu
def test_a_gpu_measures_prefills_too(tiny_llama: Path) -> None:
    measured = run_figures(_subject(tiny_llama, "cuda:0"), SETTINGS, Progress(disable=True))
    assert [(own.waits, own.num_processes) for own in measured.prefills] == [("sync-free", 1), ("synchronous", 1)]
    assert not measured.failures


def test_more_tokens_than_processes_help_with_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="up to 256 tokens, not of 257"):
        run_figures(_subject(tiny_llama, "cpu"), FigureSettings(num_tokens=257), Progress(disable=True))
