"""`bench prompts`, on the demo model."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.prompt_times import LaunchShape, PromptTimes
from punica_serve.bench.prompts import PromptSettings, make_report, measure, run
from punica_serve.bench.report import save_figure
from punica_serve.bench.subject import Subject
from punica_serve.config.cluster import load_config
from punica_serve.errors import ConfigError
from tiny_config import tiny_config

DEMO = Path(__file__).parents[3] / "configs" / "demo.yaml"


def test_it_times_each_length_on_each_engine(tmp_path: Path) -> None:
    subject = Subject.of(load_config(DEMO).engine, "cpu")
    settings = PromptSettings((5, 40), ("triton", "auto"), prefill_budget=16, num_others=2, repeats=1)
    with Progress() as progress:
        report = run(subject, settings, progress)
    rows = report.tables[0].records
    assert [row["tokens"] for row in rows] == [5, 40]
    assert all(float(row[f"{backend}_ms"] or 0) > 0 for row in rows for backend in settings.backends)
    assert save_figure(tmp_path / "p.png", report.figures[""]).stat().st_size > 1000


def test_ratios_are_of_the_first_backend_over_the_others() -> None:
    settings = PromptSettings((8,), ("triton", "flashinfer"), prefill_budget=16, num_others=0, repeats=1)
    (row,) = make_report({(8, "triton"): 3.0, (8, "flashinfer"): 2.0}, settings, {}).tables[0].records
    assert row["triton_over_flashinfer"] == pytest.approx(1.5)


def _measured(**settings: int) -> PromptTimes:
    subject = Subject.of(load_config(DEMO).engine, "cpu")
    sizes = {"prefill_budget": 16, "num_others": 0, "repeats": 2, **settings}
    with Progress() as progress:
        return measure(subject, PromptSettings((8, 20), ("triton",), **sizes), progress)


def test_each_step_of_a_prompt_is_a_launch_shape() -> None:
    times = _measured()
    assert {shape for shape, _ in times.step_us} == {
        LaunchShape(1, 8, 8),
        LaunchShape(1, 16, 16),
        LaunchShape(1, 4, 20),
    }
    steps_us = sum(times.step_us[LaunchShape(1, tokens, context), "triton"] for tokens, context in ((16, 16), (4, 20)))
    assert steps_us <= 1e3 * times.ms[20, "triton"] + 1


def test_prompts_that_come_together_are_one_shape_if_they_fit_one_step() -> None:
    assert {shape for shape, _ in _measured(together=2).step_us} == {LaunchShape(2, 16, 8)}


def test_the_table_has_the_shapes_that_both_backends_ran() -> None:
    times = PromptTimes()
    times.add(8, "triton", 1.0, [(LaunchShape(1, 8, 8), 900.0), (LaunchShape(1, 4, 12), 500.0)])
    times.add(8, "triton", 0.9, [(LaunchShape(1, 8, 8), 800.0)])
    times.add(8, "flashinfer", 0.7, [(LaunchShape(1, 8, 8), 700.04)])
    (row,) = times.table(tiny_config(), "bfloat16", "a GPU").times
    assert (row.new_tokens, row.context, row.prompts, row.triton_us, row.flashinfer_us) == (8, 8, 1, 800.0, 700.0)
    assert times.ms[8, "triton"] == 0.9
    with pytest.raises(ConfigError, match="leave out `--others`"):
        PromptTimes().table(tiny_config(), "bfloat16", "a GPU")
