"""The whole benchmark on a tiny shape: what it leaves behind. Its figures are not judged here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from punica_serve.bench.kernels import blog, layout, ranks, run
from punica_serve.bench.kernels.blog import random_case
from punica_serve.bench.kernels.sections import Section
from punica_serve.bench.kernels.setting import KernelBench, KernelSettings
from punica_serve.cli import bench as bench_command
from punica_serve.errors import ConfigError


def test_the_command_leaves_a_table_json_and_a_picture_of_each_section(tmp_path: Path) -> None:
    sizes = [
        "--hidden",
        "256",
        "--intermediate",
        "256",
        "--layers",
        "1",
        "--replays",
        "1",
        "--batch",
        "1",
        "--batch",
        "2",
    ]
    sections = [f"--only={name}" for name in ("figure7", "figure8", "add-lora")]
    result = CliRunner().invoke(
        bench_command.app,
        ["kernels", "--device", "cpu", "--dtype", "float16", "--out", str(tmp_path), *sizes, *sections],
    )
    assert result.exit_code == 0, result.output
    assert "µs call by call" in result.output
    document = json.loads((tmp_path / "kernels.json").read_text())
    assert set(document["tables"]) == {"figure7", "figure8", "add_lora"}
    assert len(document["tables"]["figure7"]) == 4 * 2 and len(document["tables"]["figure8"]) == 4 * 2 * 5
    assert document["settings"]["dtype"] == "float16"
    assert document["facts"]["copy, bytes/s"] > 0
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"kernels-{s}.png" for s in ("figure7", "figure8", "add-lora")
    }


def test_a_section_that_fails_is_named_and_the_others_are_kept(
    settings: KernelSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(bench: KernelBench) -> None:
        raise ArithmeticError("sgmv on distinct: error inf")

    monkeypatch.setitem(run._MEASURE, Section.RANKS, fail)
    report = run.run(settings, (Section.RANKS, Section.ADD_LORA), "cpu", Progress(disable=True))
    assert list(report.failures) == ["figure9: sgmv on distinct: error inf"]
    assert [table.name for table in report.tables] == ["add_lora"] and list(report.figures) == ["add-lora"]


def test_operators_without_adapters_follow_the_batch_down_to_1(settings: KernelSettings) -> None:
    sections = (Section.FUSED, Section.SAMPLING)
    report = run.run(replace(settings, batch_sizes=(1,)), sections, "cpu", Progress(disable=True))
    assert not report.failures
    fused, sampling = ({record["rows"] for record in table.records} for table in report.tables)
    assert (fused, sampling) == ({1, settings.num_prefill_rows}, {1, 4})


@pytest.mark.parametrize(
    ("change", "option"),
    [({"hidden_size": 2048}, "hidden"), ({"num_layers": 32}, "layers"), ({"batch_sizes": (1, 64)}, "batch")],
)
def test_sizes_that_take_a_cpu_hours_are_refused(settings: KernelSettings, change: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError, match=rf"^`--{option}` is \d+; on a CPU, .* at most \d+: lower it") as caught:
        run.run(replace(settings, **change), (Section.PAIR,), "cpu", Progress(disable=True))
    assert caught.value.param == option


def test_a_width_that_heads_do_not_share_evenly_is_refused() -> None:
    with pytest.raises(ConfigError, match="`--hidden` is 200; it must be a multiple of 128"):
        KernelSettings(hidden_size=200)


def test_lora_is_measured_by_group_for_decodes_and_prefills(settings: KernelSettings) -> None:
    small = replace(settings, hidden_size=128, intermediate_size=192)
    report = run.run(small, (Section.LORA_GROUPS,), "cpu", Progress(disable=True))
    assert not report.failures
    records = report.tables[0].records
    assert {record["group"] for record in records} == {"qkv", "o", "gate_up", "down"}
    assert {(record["case"], record["rows"]) for record in records} >= {("distinct", 256), ("one prompt", 2048)}


def test_figure_9_measures_every_rank(bench: KernelBench) -> None:
    records = ranks.measure(bench).records
    assert len(records) == 4 * 2 * 2 and {record["rank"] for record in records} == {8, 16}


def test_layouts_are_compared_on_the_same_cases(bench: KernelBench) -> None:
    (record, *_) = layout.measure(bench, (4,)).records
    assert record["ratio"] == pytest.approx(float(record["scattered"] or 0) / float(record["contiguous"] or 1))


def test_add_lora_picks_among_fifty_models_at_random() -> None:
    case = random_case(32)
    assert case.num_rows == 32 and 16 < case.num_adapters < 32 <= blog.NUM_MODELS
    assert random_case(32) == case
