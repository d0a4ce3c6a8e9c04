"""The fused operators against plain torch."""

from pathlib import Path

import pytest

from punica_serve.bench.kernels import fused
from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.fused import make_operators
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import save_figure


def test_both_ways_compute_the_same(bench: KernelBench) -> None:
    operators = make_operators(bench, 5)
    names = ["rms_norm", "add_rms_norm", "silu_and_mul", "rotary_append", "place_drawn"]
    assert [op.name for op in operators] == names
    for operator in operators:
        assert relative_error(operator.fused(), operator.plain().double()) < 1e-6, operator.name


def test_it_measures_both_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    table = fused.measure(bench, (2, 3))
    assert [(record["operator"], record["rows"]) for record in table.records][4:6] == [
        ("place_drawn", 2),
        ("rms_norm", 3),
    ]
    assert all(record["fused_us"] and record["torch_launched_us"] for record in table.records)
    assert save_figure(tmp_path / "f.png", lambda figure: fused.draw(table, figure)).stat().st_size > 1000


def test_one_that_differs_is_an_error(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "silu_and_mul", lambda out, gate_up: out.fill_(1.0))
    with pytest.raises(ArithmeticError, match="silu_and_mul of 2 rows, against torch: error"):
        fused.measure(bench, (2,))
