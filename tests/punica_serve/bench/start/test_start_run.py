from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.start import start_run
from punica_serve.bench.start.start_run import StartSettings, make_report, run
from punica_serve.bench.start.started_engine import Start
from punica_serve.config.engine_section import EngineConfig
from waits import DEADLINE_S


def _settings(model: Path, num_rounds: int = 1) -> StartSettings:
    return StartSettings(EngineConfig(model=model, cpu_threads=1), "cpu", 2, num_rounds, timeout_s=DEADLINE_S)


@pytest.mark.slow
def test_a_group_and_one_device_are_started_in_turn(tiny_llama: Path) -> None:
    progress = Progress(disable=True)
    report = run(_settings(tiny_llama), progress)
    assert not report.failures
    assert progress.tasks[0].description == "start of cpu,cpu: rank 0 ending, rank 1 ending"
    one, group, other = report.tables[0].records
    assert [(record["device"], record["rank"]) for record in (one, group, other)] == [
        ("cpu", 0),
        ("cpu,cpu", 0),
        ("cpu,cpu", 1),
    ]
    for record in (one, group, other):
        assert isinstance(record["imports_s"], float)
        assert isinstance(record["total_s"], float)
        assert 0 < record["imports_s"] < record["total_s"]
    assert "joining_s" in group
    assert report.facts["group over one device"] == pytest.approx(group["total_s"] / one["total_s"], abs=0.006)  # type: ignore[operator]


def test_medians_are_compared(tiny_llama: Path) -> None:
    starts = {
        "cpu": [Start(total, [{"imports": 2.0}]) for total in (3.0, 4.0, 50.0)],
        "cpu,cpu": [Start(total, [{"imports": 2.0}, {"imports": 3.0, "joining": 1.5}]) for total in (7.0, 5.0, 6.0)],
    }
    report = make_report(_settings(tiny_llama, 3), starts)
    assert report.tables[0].rows == [
        ("cpu", 0, 4.0, 2.0, 0.0, 2.0),
        ("cpu,cpu", 0, 6.0, 2.0, 0.0, 4.0),
        ("cpu,cpu", 1, 6.0, 3.0, 1.5, 1.5),
    ]
    assert report.facts == {"group over one device": 1.5}


def test_one_that_fails_is_not_started_again_and_costs_the_other_nothing(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def start(config: EngineConfig, device: str, *_: object) -> Start:
        begun.append(device)
        if device == "cpu,cpu":
            raise RuntimeError("cpu,cpu can't be started")
        return Start(3.0, [{"imports": 2.0}])

    monkeypatch.setattr(start_run, "start_once", start)
    progress = Progress(disable=True)
    report = run(_settings(tiny_llama, 2), progress)
    assert progress.finished
    assert begun == ["cpu", "cpu,cpu", "cpu", "cpu"]
    assert report.failures == ["cpu,cpu can't be started"]
    assert report.tables[0].rows == [("cpu", 0, 3.0, 2.0, 1.0)] and not report.facts


def test_a_start_that_fails_is_told(tiny_llama: Path) -> None:
    report = make_report(_settings(tiny_llama), {"cpu": [], "cpu,cpu": []}, ["cpu can't be started"])
    assert report.failures and not report.facts and not report.tables[0].rows
