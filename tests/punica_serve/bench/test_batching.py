"""Latency against batch size on a tiny model, and the knee of given curves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from punica_serve.bench.batching import BatchingMeasured, BatchingSettings, DecodeTime, run
from punica_serve.bench.batching_report import auto_point, knee, make_report
from punica_serve.bench.report import leave
from punica_serve.bench.subject import Subject
from punica_serve.config.engine_section import EngineConfig
from punica_serve.workload import Population

SETTINGS = BatchingSettings(
    prompts=(4, 1000), prefill_batches=(1, 3), contexts=(24, 80), decode_batches=(1, 2, 4), rank=4, auto_context=30
)


@pytest.fixture(scope="module")
def subject(tiny_llama: Path) -> Subject:
    # Pages for four requests of 24 + 16 tokens, but for three of 80 + 16.
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=23, num_lora_pages=1, cpu_threads=1)
    return Subject.of(config, "cpu")


@pytest.fixture(scope="module")
def measured(subject: Subject) -> BatchingMeasured:
    return run(subject, SETTINGS, Progress(disable=True))


def test_prompts_are_prefilled_one_after_the_other(measured: BatchingMeasured) -> None:
    assert [(time.num_prompt_tokens, time.num_prompts) for time in measured.prefills] == [(4, 1), (4, 3)]
    assert 0 < measured.prefills[0].latency_s < measured.prefills[1].latency_s


def test_every_batch_that_fits_is_decoded(measured: BatchingMeasured) -> None:
    cells: dict[tuple[str, int], list[int]] = {}
    for time in measured.decodes:
        assert time.step_s > 0
        cells.setdefault((time.adapters, time.num_context_tokens), []).append(time.batch_size)
    assert cells == {
        ("none", 24): [4, 2, 1],
        ("none", 80): [2, 1],
        ("identical", 24): [4, 2, 1],
        ("distinct", 24): [4, 2, 1],
        ("distinct", 30): [4, 2, 1],
    }


def test_every_batch_is_measured_at_the_context_that_is_asked_for(measured: BatchingMeasured) -> None:
    for time in measured.decodes:
        assert time.mean_context_tokens == pytest.approx(time.num_context_tokens, abs=1), time


def test_so_are_batches_that_would_be_filled_by_several_prefills_a_step(tiny_llama: Path) -> None:
    config = EngineConfig(model=tiny_llama, dtype="float32", num_kv_pages=600, num_lora_pages=1, cpu_threads=1)
    settings = replace(SETTINGS, prompts=(4,), contexts=(100,), decode_batches=(64,), populations=(), auto_context=None)
    (time,) = run(Subject.of(config, "cpu"), settings, Progress(disable=True)).decodes
    assert time.mean_context_tokens == pytest.approx(100, abs=1)


def test_a_batch_larger_than_its_context_still_decodes(subject: Subject) -> None:
    """Its first requests are past the context before the last one is prefilled, and the table says so."""
    settings = replace(SETTINGS, contexts=(2,), decode_batches=(6,), populations=(), auto_context=None)
    (time,) = run(subject, settings, Progress(disable=True)).decodes
    assert time.batch_size == 6 and time.mean_context_tokens == pytest.approx(2 + 12.5 + 2.5)


@pytest.mark.parametrize(
    ("step_ms", "expected"),
    [
        ({1: 10.0, 2: 10.0, 4: 10.0}, 4),
        ({1: 10.0, 2: 11.0, 4: 16.0, 8: 30.0}, 2),
        ({1: 10.0, 2: 20.0}, 1),
        ({1: 4.0, 16: 5.0, 24: 5.5, 32: 5.9, 64: 8.0}, 32),
        ({3: 1.0}, None),
    ],
)
def test_the_knee_is_the_last_batch_worth_doubling(step_ms: dict[int, float], expected: int | None) -> None:
    assert knee([DecodeTime("none", 512, size, ms / 1e3, 512.0) for size, ms in step_ms.items()]) == expected


@pytest.mark.parametrize(
    ("step_ms", "expected"),
    [
        ({32: 9.0, 48: 30.0, 64: 12.0, 128: 20.0, 256: 31.0}, 128),
        ({32: 9.0, 64: 26.0, 128: 20.0}, 32),
        ({32: 40.0, 64: 50.0}, 32),
        ({1: 4.0, 64: 9.0}, 64),
        ({1: 4.0}, None),
    ],
)
def test_auto_takes_the_largest_of_its_sizes_whose_steps_keep_the_target(
    step_ms: dict[int, float], expected: int | None
) -> None:
    decodes = [DecodeTime("distinct", 30, size, ms / 1e3, 30.0) for size, ms in step_ms.items()]
    others = [DecodeTime("none", 30, 256, 1e-3, 30.0), DecodeTime("distinct", 24, 256, 1e-3, 24.0)]
    point = auto_point(SETTINGS, [*others, *decodes], 25.0)
    assert (point.batch_size if point else None) == expected


def test_it_leaves_tables_json_and_a_picture(
    subject: Subject, measured: BatchingMeasured, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(make_report(subject, SETTINGS, measured), tmp_path, Console(width=200))
    assert "adapters distinct, context 24" in capsys.readouterr().out
    document = json.loads((tmp_path / "batching.json").read_text())
    assert document["settings"]["populations"] == [Population.IDENTICAL, Population.DISTINCT]
    first = document["tables"]["decode"][0]
    assert first["batch_size"] == 1 and first["ms_per_token"] == pytest.approx(first["step_ms"])
    assert (tmp_path / "batching.png").read_bytes().startswith(b"\x89PNG")
