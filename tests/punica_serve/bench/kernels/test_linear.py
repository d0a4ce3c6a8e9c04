"""The dense projections against torch's."""

from pathlib import Path

import pytest
from torch import Tensor

from punica_serve.bench.kernels import linear
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import save_figure


def test_a_7b_layers_projections() -> None:
    shapes = {name: (num_in, num_out) for name, num_in, num_out, _ in linear.projections(4096, 11008)}
    assert shapes == {"qkv": (4096, 12288), "o": (4096, 4096), "gate_up": (4096, 22016), "down": (11008, 4096)}


def test_it_measures_every_projection_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    table = linear.measure(bench, (1, 3))
    assert [row[:4] for row in table.rows[:3]] == [("qkv", 256, 768, 1), ("qkv", 256, 768, 3), ("o", 256, 256, 1)]
    assert len(table.rows) == 8
    (qkv, *_) = table.records
    num_bytes = (256 * 768 + 256 + 768) * 4
    byte_us = num_bytes / bench.copy_bytes_per_s * 1e6
    assert float(qkv["floor_us"] or 0) == max(byte_us, 2 * 256 * 768 / bench.flop_per_s * 1e6)
    assert all(record["us"] and record["torch_lt_us"] for record in table.records)
    assert save_figure(tmp_path / "l.png", lambda figure: linear.draw(table, figure)).stat().st_size > 1000


def test_one_that_is_wrong_is_an_error(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: Tensor, weight: Tensor, **_: bool) -> Tensor:
        return 2 * (x @ weight.T)

    monkeypatch.setattr(linear, "linear", doubled)
    with pytest.raises(ArithmeticError, match=r"linear, qkv of 2 rows: error 1\.00e\+00"):
        linear.measure(bench, (2,))


def test_parts_are_added_before_they_are_judged(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_halves(x: Tensor, weight: Tensor, *, split_k: bool, pdl: bool) -> Tensor:
        y = x @ weight.T
        return y[None].expand(2, -1, -1) / 2 if split_k else y

    monkeypatch.setattr(linear, "linear", in_halves)
    assert all(float(record["error"] or 0) < 1e-6 for record in linear.measure(bench, (2,)).records)
