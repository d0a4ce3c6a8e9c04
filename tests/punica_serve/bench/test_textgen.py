"""The benchmark itself on a tiny model: what it counts, and what it leaves behind. Its figures are not judged here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress

from punica_serve.base_model.rank import Rank
from punica_serve.bench import textgen, textgen_report
from punica_serve.bench.goals import GOAL_SHAPE
from punica_serve.bench.lora_in_steps import by_row, shape_goals
from punica_serve.bench.random_adapters import write_folders
from punica_serve.bench.report import Report, leave
from punica_serve.bench.step_floor import DeviceRates, StepBytes
from punica_serve.bench.subject import Subject
from punica_serve.bench.textgen import TextgenMeasured, TextgenSettings, run
from punica_serve.bench.textgen_report import make_report, measure_all
from punica_serve.bench.textgen_rows import COUNTERPARTS, GPU_ROWS, PEFT_ROW, ROWS, fit, parse_rows, requests_of
from punica_serve.config.engine_section import EngineConfig
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef
from punica_serve.shapes import shape_of
from punica_serve.workload import RequestLength, shipped_workload

SETTINGS = TextgenSettings(
    rows=parse_rows("distinct,uniform,identical,backbone,distinct_alone,files,same_adapter_only,static", on_gpu=False),
    num_requests=8,
    rank=4,
    batch_size=4,
    num_rounds=2,
    length=RequestLength(prompt=3, output=5),
)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=128, num_lora_pages=1, cpu_threads=1)
    return Subject.of(config, "cpu")


@pytest.fixture(scope="module")
def report(subject: Subject) -> Report:
    return measure_all(subject, SETTINGS, Progress(disable=True))


def test_every_row_runs_its_requests_by_its_policy(report: Report) -> None:
    speeds = {str(record["row"]): record for record in report.tables[0].records}
    assert tuple(speeds) == (*(row for row in SETTINGS.rows if row != "files"), "files"), "files come last"
    assert [record["num_requests"] for record in speeds.values()] == [8, 8, 8, 8, 4, 8, 8, 8, 8, 8, 8]
    # The first eight of a thousand requests hold eight of Uniform's 32 adapters.
    assert [record["num_adapters"] for record in speeds.values()] == [8, 8, 1, 0, 4, 8, 8, 8, 8, 8, 8]
    assert speeds["files"]["tokens_per_s_lowest"] == speeds["files"]["tokens_per_s_highest"], "read once, cold once"
    for record in speeds.values():
        assert 0 < float(record["tokens_per_s_lowest"] or 0) <= float(record["tokens_per_s_highest"] or 0)
    assert speeds["distinct_alone"]["mean_batch"] == speeds["same_adapter_only"]["mean_batch"] == 1
    assert float(speeds["identical"]["mean_batch"] or 0) > 2


def test_ratios_compare_within_the_run(report: Report) -> None:
    speed = {str(record["row"]): float(record["tokens_per_s"] or 0) for record in report.tables[0].records}
    assert report.facts["batched / alone, distinct"] == speed["distinct"] / speed["distinct_alone"]
    assert report.facts["distinct / identical"] == speed["distinct"] / speed["identical"]
    for own, row in (("distinct_50", "same_adapter_only"), ("distinct_320", "static"), ("distinct_300", "files")):
        assert report.facts[f"{own} / {row}, the same requests"] == speed[own] / speed[row]


def test_counterparts_have_the_same_requests_with_adapters_in_the_same_place() -> None:
    for row, own in COUNTERPARTS.items():
        assert ROWS[own].max_requests == ROWS[row].max_requests and ROWS[own].population is ROWS[row].population
        assert ROWS[own].resident is ROWS[row].resident and ROWS[own].policy == "queued"


def test_steps_are_told_apart(report: Report) -> None:
    steps = {str(record["row"]): record for record in report.tables[1].records}
    # Five tokens: one from the prefill, four from decode steps of its own.
    assert steps["same_adapter_only"]["num_mixed_steps"] == 8
    assert steps["same_adapter_only"]["num_decode_steps"] == 8 * 4
    assert steps["distinct"]["floor_ms"] is None, "a CPU has no copy rate to compare with"


def test_goals_stand_beside_their_shape_on_a_gpu(subject: Subject) -> None:
    measured = run(subject, replace(SETTINGS, num_rounds=1), Progress(disable=True))
    at_goal = replace(subject, model=replace(subject.model, name=GOAL_SHAPE))
    steps = textgen_report._step_table(
        StepBytes.of(subject.model, subject.dtype, 4), replace(measured, rates=DeviceRates(1e9, 1e15)), None
    )
    speeds = textgen_report._speed_table("", measured, None)
    speed = by_row(speeds, "tokens_per_s")
    goals = textgen_report._goals(speed | {"distinct": 4399.0}, steps)
    assert sum(goal.measured is not None for goal in goals) == 7
    assert goals[4].measured == 4399.0 / speed["same_adapter_only"], "all requests against one after the other"
    assert goals[0].is_met is False and goals[5].measured is not None and goals[5].measured > 1
    vllm = {record["row"]: record["vllm_tokens_per_s"] for record in textgen_report._with_vllm(speeds).records}
    assert [vllm[row] for row in ("uniform", "identical", "backbone", "files")] == [1883, 3041, 4407, 659]
    # Those of distinct adapters are of 300 requests, and stand nowhere else.
    assert vllm["distinct_300"] == 1318 and vllm["distinct"] is vllm["distinct_50"] is vllm["distinct_320"] is None
    assert len(make_report(at_goal, SETTINGS, measured, None).tables) == 2, "not on a CPU"


def test_other_shapes_have_a_goal_for_their_steps(subject: Subject) -> None:
    measured = run(subject, replace(SETTINGS, rows=("distinct",), num_rounds=1), Progress(disable=True))
    bytes_of, rates = StepBytes.of(subject.model, subject.dtype, 4), DeviceRates(1e9, 1e15)
    steps = textgen_report._step_table(bytes_of, replace(measured, rates=rates), None)
    for shape in ("qwen-2.5-7b", "qwen-2.5-32b", "qwen-3-8b", "llama-3.1-8b", "mistral-7b", "gemma-3-12b"):
        (goal,) = shape_goals(steps, shape)
        assert (goal.bound.at_most, goal.measured) == (1.25, by_row(steps, "over_floor")["distinct"])
        assert shape_of(shape)
    assert not shape_goals(steps, "1b") and not shape_goals(steps, "qwen-2.5-7b, group of 2")
    settings = TextgenSettings(rows=("distinct",), num_requests=300)
    assert settings.has_steps_of_the_goals and not settings.is_of_the_goals
    assert not replace(settings, batch_size=64).has_steps_of_the_goals


def test_it_leaves_tables_json_and_a_picture(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(report, tmp_path, Console(width=120))
    assert "distinct / identical" in capsys.readouterr().out
    document = json.loads((tmp_path / "textgen.json").read_text())
    assert len(document["tables"]["speeds"]) == 11 and document["settings"]["rank"] == 4
    assert (tmp_path / "textgen.png").read_bytes().startswith(b"\x89PNG")


def test_transformers_and_peft_answer_with_exact_lengths(subject: Subject) -> None:
    settings = TextgenSettings(rows=(PEFT_ROW, "backbone"), num_requests=2, rank=4, length=RequestLength(3, 5))
    report = measure_all(subject, settings, Progress(disable=True))
    assert [record["row"] for record in report.tables[0].records] == ["backbone", PEFT_ROW]
    speed = report.tables[0].records[1]
    assert speed["num_requests"] == 2
    step_ms = report.tables[1].records[1]["decode_ms_median"]
    assert step_ms == pytest.approx(float(speed["seconds"] or 0) / (2 * 5) * 1e3)
    notes = " ".join((*report.tables[0].notes, *report.tables[1].notes))
    assert "not batched" in notes and "same_adapter_only" not in notes


def test_rows_that_were_not_measured_have_no_notes(subject: Subject) -> None:
    measured = TextgenMeasured((), None, shipped_workload(1), failures=("static: failed",))
    report = make_report(subject, SETTINGS, measured, None)
    assert not any(table.notes for table in report.tables)


def test_rows_are_chosen_by_name() -> None:
    by_default = parse_rows(None, on_gpu=True)
    assert {*by_default} == {*GPU_ROWS, *COUNTERPARTS.values(), PEFT_ROW}
    assert set(parse_rows(None, on_gpu=False)) <= set(ROWS) and set(GPU_ROWS) <= set(ROWS)
    assert parse_rows("static, distinct,static", on_gpu=False) == ("distinct_320", "static", "distinct")
    with pytest.raises(ConfigError, match=r"row 'zipf' does not exist; there are distinct, uniform"):
        parse_rows("zipf", on_gpu=True)


def test_filtered_requests_are_those_of_the_base_alone_but_sampled() -> None:
    workload = shipped_workload(3)
    base, filtered = (
        requests_of(ROWS[name], workload, (), vocab_size=64, run="0") for name in ("backbone", "filtered")
    )
    assert [each.prompt_ids for each in filtered] == [each.prompt_ids for each in base]
    assert [each.sampling.max_tokens for each in filtered] == [each.sampling.max_tokens for each in base]
    assert all(each.sampling.temperature and each.sampling.top_k and each.sampling.top_p < 1 for each in filtered)
    assert len({each.sampling.seed for each in filtered}) == len(filtered)


def test_long_requests_are_cut_to_the_model() -> None:
    workload = fit(shipped_workload(), 256)
    assert max(prompt + output for prompt, output in workload.lengths) <= 256
    assert max(output for _, output in workload.lengths) == 128
    assert fit(shipped_workload(), 4096) == shipped_workload()


def test_a_row_that_fails_ends_no_other(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_and_damage(folder: Path, *rest: Any) -> list[AdapterRef]:
        refs = write_folders(folder, *rest)
        (Path(refs[2].uri) / "adapter_config.json").write_text("{}")
        return refs

    monkeypatch.setattr(textgen, "write_folders", write_and_damage)
    settings = replace(SETTINGS, rows=("files", "backbone"), num_rounds=1)
    measured = run(subject, settings, Progress(disable=True))
    assert [times.row.name for times in measured.rows] == ["backbone"]
    assert len(measured.failures) == 1 and "files: a request of the benchmark failed" in measured.failures[0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_steps_on_a_gpu_stand_beside_their_floor(tmp_path: Path) -> None:
    subject = Subject.of_shape("1b", "cuda:0")
    rows = parse_rows("distinct,backbone,files,same_adapter_only", on_gpu=True)
    report = measure_all(subject, TextgenSettings(rows=rows, num_requests=40), Progress(disable=True))
    assert not report.failures
    steps = {str(record["row"]): record for record in report.tables[1].records}
    for row in rows:
        assert float(steps[row]["over_floor"] or 0) > 0.9, "no step is faster than the bytes that it reads"
    assert float(steps["distinct"]["floor_ms"] or 0) > float(steps["backbone"]["floor_ms"] or 0)


def test_one_rank_of_a_group_runs_by_itself(subject: Subject) -> None:
    rank = Subject.of(subject.config, "cpu", Rank(1, 2))
    report = measure_all(rank, replace(SETTINGS, rows=("distinct", "files"), num_rounds=1), Progress(disable=True))
    assert not report.failures
    assert [record["num_requests"] for record in report.tables[0].records] == [8, 8]
    assert report.settings["model"] == f"{subject.model.name}, rank 1 of 2"
    floors, whole = (StepBytes.of(each.model, torch.float32, 4) for each in (rank, subject))
    assert whole.weights / 2 <= floors.weights < whole.weights
    assert whole.adapter / 2 < floors.adapter < whole.adapter


def test_the_baseline_has_no_ranks() -> None:
    with pytest.raises(ConfigError, match="runs the whole model; leave it out, or leave out `--shard`"):
        parse_rows(PEFT_ROW, on_gpu=True, with_peft=False)
    assert PEFT_ROW not in parse_rows(None, on_gpu=True, with_peft=False)
