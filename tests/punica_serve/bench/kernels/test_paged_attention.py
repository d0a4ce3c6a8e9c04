"""A prefill's attention: what it must move and multiply, and that it is judged before it is timed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.bench.kernels import paged_attention
from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.paged_attention import PREFILLS, Prefill, PrefillTensors
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import save_figure


def test_prefills_of_three_sizes_up_to_a_long_context() -> None:
    assert {prefill.num_new for prefill in PREFILLS} == {128, 512, 2048}
    assert max(prefill.context for prefill in PREFILLS) == 4096 and len(set(PREFILLS)) == len(PREFILLS)


def test_operations_are_those_of_causal_rows() -> None:
    # Three rows behind two tokens see three, four and five; each pair takes a product of 128 in, and one out.
    assert Prefill(3, 5).flop(num_heads=2) == 2 * (3 + 4 + 5) * 2 * 2 * 128
    assert Prefill(3, 5).num_bytes(num_heads=2, itemsize=2) == (5 + 5 + 3 + 3) * 2 * 128 * 2


def test_the_reference_is_causal_attention_over_scattered_pages(bench: KernelBench) -> None:
    tensors = PrefillTensors(bench, Prefill(5, 37))
    k, v = (pool[tensors.pages.long()].reshape(-1, 2, 128)[:37].double() for pool in tensors.layer(1))
    for row in range(5):
        seen = 32 + row + 1
        scores = torch.einsum("hd,chd->hc", tensors.q[row].double(), k[:seen]) * 128**-0.5
        attended = torch.einsum("hc,chd->hd", scores.softmax(-1), v[:seen])
        assert relative_error(tensors.expected(1)[row], attended) < 1e-6


def test_it_measures_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    table = paged_attention.measure(bench, (Prefill(5, 5), Prefill(3, 40)))
    assert [(record["new_tokens"], record["context"]) for record in table.records] == [(5, 5), (3, 40)]
    for record in table.records:
        assert record["us"] and float(record["error"] or 0) < 1e-5 and record["flashinfer_us"] is None
    assert table.notes[-1] == "FlashInfer was not measured: it has nothing for a cpu"
    draw_to = tmp_path / "p.png"
    assert save_figure(draw_to, lambda figure: paged_attention.draw(table, figure)).stat().st_size > 1000


def test_flashinfer_stands_beside_it_and_is_judged_too(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(q: Any, out: torch.Tensor, *_: Any) -> Any:
        return lambda layer: out.copy_(PrefillTensors.expected(made[-1], layer))

    made: list[PrefillTensors] = []

    class Noted(PrefillTensors):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(paged_attention, "PrefillTensors", Noted)
    monkeypatch.setattr(paged_attention, "flashinfer_prefill", stand_in)
    (record,) = paged_attention.measure(bench, (Prefill(3, 40),)).records
    assert float(record["times_faster"] or 0) == float(record["flashinfer_us"] or 0) / float(record["us"] or 1)

    monkeypatch.setattr(paged_attention, "flashinfer_prefill", lambda *_: lambda layer: None)
    with pytest.raises(ArithmeticError, match="FlashInfer of 3 new tokens in 40: error inf"):
        paged_attention.measure(bench, (Prefill(3, 40),))
