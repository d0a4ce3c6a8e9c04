"""The merge of divided attention against plain torch."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from punica_kernels.merge_attention import merge_attention as merge
from punica_serve.bench.kernels import merge_attention
from punica_serve.bench.kernels.merge_attention import CASES, Copies
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import save_figure


@pytest.mark.parametrize("copies", CASES)
def test_copies_are_spread_evenly_over_the_first_rows(copies: Copies) -> None:
    counts = [end - start for start, end in pairwise(copies.starts)]
    assert len(counts) == copies.num_rows and sum(counts) == copies.num_copies == copies.num_rows // 4
    assert [bool(count) for count in counts] == [row < copies.num_divided for row in range(copies.num_rows)]


def test_it_measures_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    table = merge_attention.measure(bench, (Copies(6, 4, 1), Copies(6, 4, 3)))
    assert [record["divided"] for record in table.records] == [1, 3]
    assert all(record["us"] and record["torch_us"] and record["floor_us"] for record in table.records)
    assert all(float(record["error"] or 0) < 1e-6 for record in table.records)
    draw_to = tmp_path / "m.png"
    assert save_figure(draw_to, lambda figure: merge_attention.draw(table, figure)).stat().st_size > 1000


def test_one_that_merges_nothing_is_an_error(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge_references_alone(out: Tensor, log_sums: Tensor, starts: Tensor) -> None:
        if out.dtype is torch.float64:
            merge(out, log_sums, starts)

    monkeypatch.setattr(merge_attention, "merge_attention", merge_references_alone)
    with pytest.raises(ArithmeticError, match=r"^merge_attention of 4 copies of 3 rows: error"):
        merge_attention.measure(bench, (Copies(6, 4, 3),))
