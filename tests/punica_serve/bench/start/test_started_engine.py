import time
from pathlib import Path

import pytest

from punica_serve.bench.start import started_engine
from punica_serve.bench.start.started_engine import Phases, start_once
from punica_serve.config.engine_section import EngineConfig
from waits import DEADLINE_S


def test_a_start_is_counted_from_when_its_process_was_started(tiny_llama: Path) -> None:
    said: list[str] = []
    began_s = time.monotonic()
    config = EngineConfig(model=tiny_llama, cpu_threads=1)
    start = start_once(config, "cpu", DEADLINE_S, lambda phases: said.append(f"{phases}"))
    (phases,) = start.by_rank
    assert sum(phases.values()) < start.total_s < time.monotonic() - began_s
    assert said[0] == "imports" and said[-1] == "ending"
    assert {"device", "weights", "pools"} <= {*said}


@pytest.mark.slow
def test_the_phases_of_all_ranks_are_told(tiny_llama: Path) -> None:
    said: list[str] = []
    config = EngineConfig(model=tiny_llama, cpu_threads=1)
    start_once(config, "cpu,cpu", DEADLINE_S, lambda phases: said.append(f"{phases}"))
    assert said[0] == "rank 0 imports, rank 1 imports"
    assert {"weights", "graphs"} <= {line.rpartition("rank 1 ")[2] for line in said}


def test_a_start_that_fails_tells_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"cpu can't be started: .*config\.json"):
        start_once(EngineConfig(model=tmp_path), "cpu", DEADLINE_S)


@pytest.mark.parametrize(
    ("told", "phase"),
    [
        ('print(\'{"rank": 1, "phase": "weights"}\', flush=True)', "rank 0 imports, rank 1 weights"),
        ('print(\'{"total_s": 1.0, "by_rank": [{}, {}]}\', flush=True)', "rank 0 ending, rank 1 ending"),
        (
            'print(\'NCCL version 2\'); print(7); print(\'{"rank": 1, "phase": "joining"}\', flush=True)',
            "rank 0 imports, rank 1 joining",
        ),
        ("import os; os.close(1)", "rank 0 imports, rank 1 imports"),
    ],
)
def test_a_start_that_hangs_ends_with_its_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, phase: str
) -> None:
    (tmp_path / "stuck_start.py").write_text(f"{told}; import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(started_engine, "_MODULE", "stuck_start")
    with pytest.raises(RuntimeError, match=f"within 1 s, and was in: {phase}; raise `--timeout`"):
        start_once(EngineConfig(model=tmp_path), "cpu,cpu", 1.0)


def test_one_process_needs_no_number() -> None:
    phases = Phases(1)
    phases.begin(0, "weights")
    assert f"{phases}" == "weights"
