"""The benchmark itself on a tiny model: what it counts, and what it leaves behind. Its figures are not judged here."""

import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from punica_serve.bench import textgen
from punica_serve.bench import textgen_report as report
from punica_serve.bench.textgen import Measurement, Workload, run
from punica_serve.config import EngineConfig
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AdapterRef

WORKLOAD = Workload(rank=4, num_prompt_tokens=3, num_output_tokens=6, concurrency=4, num_rounds=1)


@pytest.fixture(scope="module")
def config(tiny_llama: Path) -> EngineConfig:
    return EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=64, num_lora_pages=1, cpu_threads=1)


@pytest.fixture(scope="module")
def measurements(config: EngineConfig) -> list[Measurement]:
    return run(config, WORKLOAD, "cpu", Progress(disable=True))


def test_every_population_is_measured_alone_and_batched(measurements: list[Measurement]) -> None:
    cells = {(m.population, m.concurrency): m for m in measurements}
    assert set(cells) == {(name, n) for name in ("distinct", "uniform", "skewed", "identical") for n in (1, 4)}
    for (_, concurrency), m in cells.items():
        low, high = m.tokens_per_s_range
        assert 0 < low <= m.tokens_per_s <= high
        assert m.mean_batch_size == 1 if concurrency == 1 else 2 < m.mean_batch_size <= 4
    # A single cell runs four requests, one after the other.
    for concurrency in (1, 4):
        counts = [cells[name, concurrency].num_adapters for name in ("distinct", "uniform", "skewed", "identical")]
        assert counts == [4, 2, 3, 1]


def test_a_request_that_fails_is_no_measurement(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    make_adapters = textgen._make_adapters

    def make_and_damage(model_folder: Path, folder: Path, workload: Workload) -> list[AdapterRef]:
        refs = make_adapters(model_folder, folder, workload)
        (Path(refs[2].uri) / "adapter_config.json").write_text("{}")
        return refs

    monkeypatch.setattr(textgen, "_make_adapters", make_and_damage)
    with pytest.raises(RequestFailed, match=r"a request of the benchmark failed: .*changed on disk"):
        run(config, WORKLOAD, "cpu", Progress(disable=True))


def test_adapters_that_do_not_come_in_time_end_it(config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textgen, "_ADAPTER_DEADLINE_S", 0.0)
    with pytest.raises(RequestFailed, match="not on the device after 0 s"):
        run(config, WORKLOAD, "cpu", Progress(disable=True))


def test_ratios_compare_within_the_run(measurements: list[Measurement]) -> None:
    speed = {(m.population, m.concurrency): m.tokens_per_s for m in measurements}
    ratios = report.ratios(measurements)
    assert ratios["batched / alone, skewed"] == speed["skewed", 4] / speed["skewed", 1]
    assert ratios["distinct / identical, batched"] == speed["distinct", 4] / speed["identical", 4]


def test_it_leaves_a_table_json_and_a_picture(
    measurements: list[Measurement], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.print_table(measurements, Console(width=120))
    assert "distinct / identical, batched" in capsys.readouterr().out
    report.write_json(tmp_path / "t.json", measurements, WORKLOAD, "cpu")
    document = json.loads((tmp_path / "t.json").read_text())
    assert len(document["measurements"]) == 8 and document["machine"]["torch"] and document["workload"]["rank"] == 4
    report.draw(tmp_path / "t.png", measurements)
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
