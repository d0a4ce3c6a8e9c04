"""Cold and warm streams on a tiny model: who arrives, who is counted, and what it leaves behind."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from punica_serve.bench import coldstart, coldstart_stream
from punica_serve.bench.coldstart import ColdstartMeasured, run
from punica_serve.bench.coldstart_report import make_report
from punica_serve.bench.coldstart_stream import ColdstartSettings, Source
from punica_serve.bench.driver import preload
from punica_serve.bench.page_cache import forget
from punica_serve.bench.random_adapters import fill_host_cache
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.adapters.load_trace import LoadPhase
from punica_serve.engine.engine import Engine
from punica_serve.errors import ConfigError, RequestFailed
from punica_serve.protocol import AdapterRef

SETTINGS = ColdstartSettings(
    num_arrivals=3, gap_s=0.01, num_prompt_tokens=4, num_output_tokens=2, num_rounds=2, rank=4, batch_size=4
)


@pytest.fixture(scope="module")
def subject(make_llama: Callable[..., Path]) -> Subject:
    """Requests beside a stream decode on while a busy machine brings adapters from a store."""
    return _subject(make_llama(max_position_embeddings=8192), num_kv_pages=2048)


def _subject(model: Path, num_kv_pages: int) -> Subject:
    config = EngineConfig(model=model, dtype="float32", num_kv_pages=num_kv_pages, num_lora_pages=1, cpu_threads=1)
    return Subject.of(config, "cpu")


@pytest.fixture(scope="module", params=["host", "packed", "disk", "files", "http", "s3"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    chosen: Source = request.param
    if chosen == "disk" and not _can_be_forgotten(tmp_path_factory.mktemp("disk") / "file"):
        pytest.skip("temporary files are not on a disk")
    if chosen == "s3":
        pytest.importorskip("s3fs", reason="needs the extra s3")
    return chosen


def _can_be_forgotten(path: Path) -> bool:
    path.write_bytes(bytes(1 << 16))
    with path.open("rb") as file:
        return forget(file.fileno())


@pytest.fixture(scope="module")
def measured(subject: Subject, source: Source) -> ColdstartMeasured:
    return run(subject, replace(SETTINGS, source=source), Progress(disable=True))


def test_every_arrival_of_both_streams_is_counted(measured: ColdstartMeasured) -> None:
    for times in (measured.warm, measured.cold):
        assert len(times.first_token_s) == SETTINGS.num_rounds * SETTINGS.num_arrivals
        assert min(times.first_token_s) > 0
        # Three requests decode beside the stream, for two gaps at least.
        assert len(times.between_tokens_s) >= 3
        assert min(times.between_tokens_s) > 0


def test_an_adapter_that_was_there_before_is_not_called_cold(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldstart, "_PILOT_ARRIVALS", 0)  # the stream's own adapters come first, and are brought

    def fill_and_bring(engine: Engine, *rest: Any) -> list[AdapterRef]:
        refs = fill_host_cache(engine, *rest)
        preload(engine, refs)
        return refs

    monkeypatch.setattr(coldstart, "fill_host_cache", fill_and_bring)
    with pytest.raises(RequestFailed, match="on the device already"):
        run(subject, SETTINGS, Progress(disable=True))


def test_every_other_round_begins_warm(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    run_stream = coldstart_stream.run_stream

    def note_and_run(*rest: Any, run: str) -> None:
        runs.append(run)
        run_stream(*rest, run=run)

    monkeypatch.setattr(coldstart, "run_stream", note_and_run)
    run(subject, SETTINGS, Progress(disable=True))
    assert runs == ["pilot", "cold-0", "warm-0", "warm-1", "cold-1"]


def test_an_adapter_that_is_not_there_is_not_called_warm(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldstart, "preload", lambda *_: None)
    with pytest.raises(RequestFailed, match="of the warm stream is not on the device"):
        run(subject, SETTINGS, Progress(disable=True))


def test_warm_requests_must_outlast_the_stream(tiny_llama: Path) -> None:
    with pytest.raises(RequestFailed, match="a warm request ended before the stream"):
        run(_subject(tiny_llama, num_kv_pages=128), replace(SETTINGS, gap_s=5.0), Progress(disable=True))


@pytest.mark.parametrize("source", ["host"], indirect=True)
def test_it_leaves_tables_json_and_a_picture(
    subject: Subject, measured: ColdstartMeasured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = make_report(subject, SETTINGS, measured)
    leave(report, tmp_path, Console(width=200))
    assert "p99 between tokens, cold / warm" in capsys.readouterr().out
    streams = json.loads((tmp_path / "coldstart.json").read_text())["tables"]["streams"]
    assert [stream["stream"] for stream in streams] == ["all warm", "cold, in host memory"]
    warm, cold = streams
    added_ms = cold["first_token_ms_mean"] - warm["first_token_ms_mean"]
    assert report.facts["first token, cold - warm, mean ms"] == pytest.approx(added_ms)
    assert (tmp_path / "coldstart.png").read_bytes().startswith(b"\x89PNG")


def test_it_says_where_the_time_of_first_tokens_went(
    subject: Subject, measured: ColdstartMeasured, source: Source
) -> None:
    report = make_report(subject, replace(SETTINGS, source=source), measured)
    tables = {table.name: table.records for table in report.tables}
    added_up_ms = sum(float(row["cold_ms_mean"]) for row in tables["phases"] if row["cold_ms_mean"] is not None)
    assert added_up_ms == pytest.approx(tables["streams"][1]["first_token_ms_mean"])
    num_gaps = sum(int(row["num_gaps"] or 0) for row in tables["phases"])
    assert num_gaps == len(measured.cold.gaps) and 0 < len(tables["longest_gaps"]) <= num_gaps
    assert all(token.trace is not None for token in measured.cold.first_tokens)
    assert ("chunks" in tables) == (source in ("packed", "disk"))
    assert [row["stream"] for row in tables["host"]] == ["all warm", "cold"]
    assert len(measured.cold.hosts) == SETTINGS.num_rounds
    if source in ("packed", "disk"):
        (chunks,) = tables["chunks"]
        # A request that waited for its place may have had its adapter read to host memory before.
        assert 0 < int(chunks["num_loads"] or 0) <= SETTINGS.num_rounds * SETTINGS.num_arrivals
        assert report.facts["packed files in the page cache, % as streams begin"] == (100 if source == "packed" else 0)
    fetching = [row for row in tables["phases"] if row["phase"] == LoadPhase.FETCHING.value]
    assert bool(fetching) == (source in ("http", "s3"))
    # Each cold load has its phases, also if its request waited for a place meanwhile.
    read = LoadPhase.READING if source in ("packed", "disk") else LoadPhase.PACKING
    traces = [token.trace for token in measured.cold.first_tokens if token.trace is not None]
    assert all(any(span.phase is read for span in trace.spans) for trace in traces) == (source != "host")
    if source == "packed":
        assert chunks["direct_share"] == 0


def test_a_store_has_its_rate_and_its_goal(subject: Subject, source: Source, measured: ColdstartMeasured) -> None:
    facts = make_report(subject, replace(SETTINGS, source=source), measured).facts
    over = "first token, cold - warm, over 1.25 x the bytes' time at the store's rate and 50 ms"
    if source not in ("http", "s3"):
        assert measured.store is None and over not in facts
        return
    assert measured.store is not None and 0 < measured.store.rate <= 1.2e9 and measured.store.allowed_s > 0.05
    added_ms = facts["first token, cold - warm, mean ms"]
    assert isinstance(added_ms, float)
    assert facts[over] == pytest.approx(added_ms / 1e3 / measured.store.allowed_s)
    assert facts["the store's rate, GB/s"] == measured.store.rate / 1e9


def test_files_that_the_page_cache_keeps_are_not_called_on_the_disk(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coldstart, "forget", lambda _: False)
    with pytest.raises(ConfigError, match="can't be shown to lack packed files; name a `--folder` on a disk"):
        run(subject, replace(SETTINGS, source="disk"), Progress(disable=True))
