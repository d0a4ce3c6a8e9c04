"""The overhead benchmark on the tiny model: its batches and files. Figures are not judged."""

import gzip
import json
from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.overhead import steady
from punica_serve.bench.overhead.profile import missing_kernels
from punica_serve.bench.overhead.run import TRACE_NAME, run, sized
from punica_serve.bench.overhead.steady import SteadyDecode
from punica_serve.bench.overhead.sweep import Cell, OverheadSettings, cells, num_batches, spread
from punica_serve.bench.report import Column, TableData, save_figures
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.engine.engine import Engine
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef

SETTINGS = OverheadSettings(
    batch_sizes=(1, 4), ranks=(4, 8), adapter_counts=(1, 2), rank=8, batch_size=2, num_steps=3, num_profiled_steps=2
)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=1, cpu_threads=1)
    return Subject.of(config, "cpu")


def test_each_sweep_varies_one_thing() -> None:
    assert cells(SETTINGS) == [
        Cell("batch", 1, 1, 8),
        Cell("batch", 4, 2, 8),
        Cell("adapters", 2, 1, 8),
        Cell("adapters", 2, 2, 8),
        Cell("rank", 2, 2, 4),
        Cell("rank", 2, 2, 8),
    ]
    assert num_batches(SETTINGS) == 6 + 3


def test_requests_are_spread_evenly_and_those_of_one_adapter_are_adjacent() -> None:
    refs = [AdapterRef(f"{number}", "", 0, {}) for number in range(3)]
    assert [ref.digest for ref in spread(refs, 8) if ref] == ["0", "0", "0", "1", "1", "1", "2", "2"]


def test_the_engine_has_room_for_every_batch(subject: Subject) -> None:
    settings = OverheadSettings(ranks=(8, 128), adapter_counts=(64,), batch_size=32, batch_sizes=(256,))
    config = sized(subject, settings)
    assert config.max_batch_size == 256 and config.num_lora_pages == 32 * 16
    assert settings.num_adapters == {8: 32, 128: 32, 16: 64}


def test_a_cache_smaller_than_the_context_is_enough(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=4, num_lora_pages=1, cpu_threads=1)
    engine = Engine(config)
    with SteadyDecode(engine, [None, None]) as decode:
        assert len(decode.run(2)) == 2


def test_it_leaves_sweeps_a_trace_and_a_picture(subject: Subject, tmp_path: Path) -> None:
    report = run(subject, SETTINGS, tmp_path, Progress(disable=True))
    sweeps, kernels = report.tables
    assert len(sweeps.records) == 6 and not report.failures
    for record in sweeps.records:
        base_ms, lora_ms, added_ms = (float(record[key] or 0) for key in ("base_ms", "lora_ms", "added_ms"))
        assert base_ms > 0 and lora_ms > 0 and added_ms == pytest.approx(lora_ms - base_ms)
    assert any("mm" in str(record["kernel"]) for record in kernels.records)
    with gzip.open(tmp_path / TRACE_NAME) as trace:
        assert json.load(trace)["traceEvents"]
    assert [path.name for path in save_figures(report, tmp_path)] == ["overhead.png"]


def test_a_batch_stays_as_it_is_until_it_goes(subject: Subject) -> None:
    engine = Engine(sized(subject, SETTINGS))
    try:
        with SteadyDecode(engine, [None] * 3) as batch:
            assert len(batch.run(5)) == 5
            assert engine.num_requests == 3
            with pytest.raises(RequestFailed, match="not every step decoded all of 1 requests"):
                SteadyDecode(engine, [None]).run(1)
        assert engine.num_requests == 0
    finally:
        engine.close()


def test_a_trace_without_the_kernels_says_which(subject: Subject) -> None:
    table = TableData("kernels", "", (Column("kernel", ""),), [("sgmv_expand",), ("nvjet_gemm",)])
    assert missing_kernels(table) == ["sgmv_shrink"]
    assert steady.NUM_SETTLING_STEPS > 2
