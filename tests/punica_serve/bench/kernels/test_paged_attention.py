"""Attention: what it must move and multiply, and that it is judged before it is timed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from punica_serve.bench.kernels import paged_attention
from punica_serve.bench.kernels.accuracy import relative_error
from punica_serve.bench.kernels.paged_attention import AttentionCase, AttentionTensors, all_cases
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import Value, save_figure


def test_cases_are_decodes_few_and_many_and_prefills_of_many_sizes() -> None:
    cases = all_cases()
    assert len({case.name for case in cases}) == len(cases)
    decodes = [case for case in cases if case.num_new == 1]
    assert {len(case.contexts) for case in decodes} == {1, 8, 32, 64} and {case.group for case in decodes} == {1, 2, 4}
    assert {case.num_new for case in cases} == {1, 16, 64, 128, 256, 512, 1024, 2048, 8192, 32000}
    assert {case.head_dim for case in cases} == {128, 256}
    assert {(case.window, case.soft_cap) for case in decodes} == {(None, None), (4096, None), (1024, None), (None, 50)}
    prefills = {(case.window, case.soft_cap) for case in cases if case.num_new > 1}
    assert prefills == {(None, None), (4096, None), (1024, None), (None, 50), (4096, 50)}


def test_a_cpu_measures_a_window_and_a_soft_cap(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[AttentionCase] = []

    def note(_: KernelBench, case: AttentionCase) -> tuple[tuple[Value, ...], None]:
        measured.append(case)
        return (), None

    monkeypatch.setattr(paged_attention, "_measure", note)
    paged_attention.measure(bench)
    assert {(case.window, case.soft_cap, case.head_dim) for case in measured} >= {(1024, None, 256), (None, 50, 256)}


def test_operations_are_those_of_causal_rows() -> None:
    # Three rows behind two tokens see three, four and five; each pair takes a product of 128 in, and one out.
    assert AttentionCase("", (5,), 3).flop(num_heads=2) == 2 * (3 + 4 + 5) * 2 * 2 * 128
    assert AttentionCase("", (5,), 3).num_bytes(num_heads=2, itemsize=2) == (5 + 5 + 3 + 3) * 2 * 128 * 2
    # Two decodes; two query heads share the keys and values.
    assert AttentionCase("", (5, 7), group=2).flop(num_heads=2) == 2 * (5 + 7) * 2 * 2 * 128
    assert AttentionCase("", (5, 7), group=2).num_bytes(num_heads=2, itemsize=2) == 2 * ((5 + 7) * 1 + 2 * 2) * 128 * 2


def test_a_prefix_counts_once_however_it_is_read() -> None:
    # Two groups of two requests share 32 tokens each.
    case = AttentionCase("", (40, 50, 60, 70), prefix=32, sharers=2)
    assert case.num_bytes(num_heads=2, itemsize=2) == 2 * (40 + 18 + 60 + 38 + 4) * 2 * 128 * 2
    assert case._replace(reads_once=True).num_bytes(2, 2) == case.num_bytes(2, 2)
    assert case.flop(num_heads=2) == 4 * 2 * 128 * (40 + 50 + 60 + 70)


def test_tokens_behind_the_window_are_neither_read_nor_multiplied() -> None:
    # Of ten tokens, the two new rows see 5 to 8 and 6 to 9.
    case = AttentionCase("", (10,), 2, window=4)
    assert case.first_seen(10) == 5
    assert case.flop(num_heads=2) == 4 * 2 * 128 * (4 + 4)
    assert case.num_bytes(num_heads=2, itemsize=2) == 2 * (5 + 2) * 2 * 128 * 2
    # Of five, they see 0 to 3 and 1 to 4; of three, all.
    assert case.flop(2) == case._replace(contexts=(5,)).flop(2)
    whole = AttentionCase("", (3,), 2)
    assert whole._replace(window=4).flop(2) == whole.flop(2)
    assert whole._replace(window=4).num_bytes(2, 2) == whole.num_bytes(2, 2)


def test_pages_behind_the_window_take_no_memory(bench: KernelBench) -> None:
    # The first row of the first request sees tokens from 57 on, in the fourth page of seven.
    tensors = AttentionTensors(bench, AttentionCase("", (100, 20), 4, window=40))
    assert len(tensors.layer(0)[0]) == 7 - 3 + 2
    first, second = tensors.pages[:7].tolist(), tensors.pages[7:].tolist()
    assert first[:4] == [first[3]] * 4
    assert sorted([*first[3:], *second]) == [*range(6)]


@pytest.mark.parametrize(("window", "soft_cap"), [(None, 0.5), (9, None), (9, 0.5)])
def test_the_reference_has_windows_and_soft_caps(
    bench: KernelBench, window: int | None, soft_cap: float | None
) -> None:
    case = AttentionCase("", (61,), 5, group=2, window=window, soft_cap=soft_cap)
    tensors = AttentionTensors(bench, case)
    k, v = (pool[tensors.pages.long()].reshape(-1, 1, 128)[:61].double() for pool in tensors.layer(1))
    for row in range(5):
        seen = slice(max(0, 56 + row + 1 - (window or 61)), 56 + row + 1)
        scores = torch.einsum("hd,cgd->hc", tensors.q[row].double(), k[seen]) * 128**-0.5
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        attended = torch.einsum("hc,cgd->hd", scores.softmax(-1), v[seen])
        assert relative_error(tensors.expected(1)[row], attended) < 1e-6


def test_the_reference_is_causal_attention_over_scattered_pages(bench: KernelBench) -> None:
    tensors = AttentionTensors(bench, AttentionCase("", (20, 37), 5))
    k, v = (pool[tensors.pages[2:].long()].reshape(-1, 2, 128)[:37].double() for pool in tensors.layer(1))
    for row in range(5):
        seen = 32 + row + 1
        scores = torch.einsum("hd,chd->hc", tensors.q[5 + row].double(), k[:seen]) * 128**-0.5
        attended = torch.einsum("hc,chd->hd", scores.softmax(-1), v[:seen])
        assert relative_error(tensors.expected(1)[5 + row], attended) < 1e-6


def test_the_reference_is_the_same_in_blocks_of_rows(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = AttentionTensors(bench, AttentionCase("", (20, 37), 5, head_dim=256, window=4))
    whole = tensors.expected(0)
    monkeypatch.setattr(paged_attention, "_MAX_REFERENCE_SCORES", 2 * 37)
    assert relative_error(tensors.expected(0), whole) < 1e-12


def test_it_measures_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    cases = (
        AttentionCase("prompt", (5,), 5),
        AttentionCase("chunks", (40, 3), 3),
        AttentionCase("decodes", (40, 3, 1), group=2),
        AttentionCase("each", (150, 161, 170, 144), prefix=128, sharers=2),
        AttentionCase("once", (150, 161, 170, 144), prefix=128, sharers=2, reads_once=True),
        AttentionCase("wide", (21,), 21, group=2, head_dim=256),
        AttentionCase("windows", (90, 17), 3, window=30),
        AttentionCase("window", (90, 17), window=30),
        AttentionCase("soft cap", (21,), 4, soft_cap=0.5),
    )
    table = paged_attention.measure(bench, cases)
    assert [(record["case"], record["requests"]) for record in table.records] == [
        ("prompt", 1),
        ("chunks", 2),
        ("decodes", 3),
        ("each", 4),
        ("once", 4),
        ("wide", 1),
        ("windows", 2),
        ("window", 2),
        ("soft cap", 1),
    ]
    shown = [(record["window"], record["soft_cap"]) for record in table.records]
    assert shown[5:] == [(None, None), (30, None), (30, None), (None, 0.5)]
    for record in table.records:
        assert record["us"] and float(record["error"] or 0) < 1e-5 and record["flashinfer_us"] is None
    assert table.notes[-1] == "FlashInfer was not measured: FlashInfer does not support cpu"
    draw_to = tmp_path / "p.png"
    assert save_figure(draw_to, lambda figure: paged_attention.draw(table, figure)).stat().st_size > 1000


def test_flashinfer_stands_beside_it_and_is_judged_too(bench: KernelBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(q: Any, out: torch.Tensor, *_: Any, **scores: Any) -> Any:
        asked.append(scores)
        return lambda layer: out.copy_(AttentionTensors.expected(made[-1], layer))

    made: list[AttentionTensors] = []
    asked: list[dict[str, Any]] = []

    class Noted(AttentionTensors):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(paged_attention, "AttentionTensors", Noted)
    monkeypatch.setattr(paged_attention, "flashinfer_attention", stand_in)
    case = AttentionCase("a chunk", (40,), 3, window=8, soft_cap=2.0)
    (record,) = paged_attention.measure(bench, (case,)).records
    assert asked == [{"window": 8, "soft_cap": 2.0}] * 2
    best = min(float(record["flashinfer_us"] or 0), float(record["fa3_us"] or 0))
    assert float(record["times_faster"] or 0) == best / float(record["us"] or 1)

    monkeypatch.setattr(paged_attention, "flashinfer_attention", lambda *_, **__: lambda layer: None)
    with pytest.raises(ArithmeticError, match="FlashInfer's fa2 of a chunk: error inf"):
        paged_attention.measure(bench, (case,))
