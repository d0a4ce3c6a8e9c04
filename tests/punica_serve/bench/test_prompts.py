"""`bench prompts`, on the demo model."""

from pathlib import Path

import pytest
from rich.progress import Progress

from punica_serve.bench.prompts import PromptSettings, make_report, run
from punica_serve.bench.report import save_figure
from punica_serve.bench.subject import Subject
from punica_serve.config.cluster import load_config

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
