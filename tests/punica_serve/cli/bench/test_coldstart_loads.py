"""`punica-serve bench coldstart-loads`, from its options to its file."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from punica_serve.bench.coldstart_loads import loads_run
from punica_serve.bench.coldstart_loads.load_times import LoadClock
from punica_serve.engine.adapters import chunk_job
from punica_serve.engine.adapters.packed_store import PackedStore
from waits import wait_for


@pytest.fixture
def config_file(tiny_llama: Path, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({"engine": {"model": str(tiny_llama), "dtype": "float32"}}))
    return path


@pytest.fixture(autouse=True)
def has_s3() -> None:
    pytest.importorskip("s3fs", reason="needs the extra s3")


def loads(cli: Callable[..., Any], config_file: Path, out: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows, and the figures that have goals."""
    options = ["--device", "cpu", "--rank", "4", "--loads", "2", "--folder", str(out.parent), "--out", str(out)]
    outcome = cli("bench", "coldstart-loads", "--config", str(config_file), *options)
    assert outcome.exit_code == 0, outcome.stderr
    report = json.loads((out / "coldstart-loads.json").read_text())
    tables = report["tables"]
    assert 0 < report["facts"]["packed, read and checked on one core alone, processor ms"] < 1e3
    return tables["loads"], [goal["figure"] for goal in tables["goals"]]


def test_each_place_has_a_row_and_a_yardstick(cli: Callable[..., Any], config_file: Path, tmp_path: Path) -> None:
    rows, figures = loads(cli, config_file, tmp_path / "out")
    assert [row["place"] for row in rows] == [
        "folder that was never seen",
        "packed, page cache",
        "packed, disk",
        "store over HTTP",
        "store over HTTP, packed afterwards",
        "store over S3",
        "store over S3, packed afterwards",
    ]
    measured = [row for row in rows if row["ms"] is not None]
    assert len(measured) == len(figures) + 2 and len(measured) >= 6, "all have goals but those packed afterwards"
    assert all(row["ms"] > 0 and row["yardstick_ms"] > 0 for row in measured)
    assert all(0 < row["busiest_ms"] <= 1.5 * row["processor_ms"] + 5 for row in measured)
    assert all(0 <= row["queued_ms"] <= 1.5 * row["ms"] + 5 for row in measured)


@pytest.mark.skipif(sys.platform != "linux", reason="workers of other systems read on threads")
def test_packed_files_are_read_by_a_process_as_a_workers_are(
    cli: Callable[..., Any], config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any) -> float:
        raise AssertionError("a thread reads a chunk")

    monkeypatch.setattr(chunk_job, "read_checked", read)
    rows, _ = loads(cli, config_file, tmp_path / "out")
    assert rows[1]["place"] == "packed, page cache" and rows[1]["processor_ms"] > 0


def test_a_process_that_does_not_start_measures_nothing(
    cli: Callable[..., Any], config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PackedStore, "start_process", lambda *_: None)
    outcome = cli("bench", "coldstart-loads", "--config", str(config_file), "--device", "cpu", "--out", str(tmp_path))
    assert outcome.exit_code and "did not start" in outcome.stderr


def test_a_load_has_the_time_of_the_process_that_reads_for_it() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as process:
        clock = LoadClock(process.pid)
        wait_for(lambda: clock.time().processor_s > 0.1)
        times = clock.time()
        process.communicate(b"\n")
    assert 0.05 < times.busiest_s <= times.processor_s


def test_a_cache_that_is_not_shown_to_be_empty_measures_no_disk(
    cli: Callable[..., Any], config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads_run, "forget", lambda _: False)
    rows, figures = loads(cli, config_file, tmp_path / "out")
    (disk,) = (row for row in rows if row["place"] == "packed, disk")
    assert disk["ms"] is None and "not measured" in disk["yardstick"] and len(figures) == 4
