"""Sampling against torch's own operators."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from punica_serve.bench.kernels import sampling
from punica_serve.bench.kernels.sampling import SamplingKind, make_rows, torch_way
from punica_serve.bench.kernels.setting import KernelBench
from punica_serve.bench.report import save_figure


def test_it_measures_every_way_and_draws(bench: KernelBench, tmp_path: Path) -> None:
    table = sampling.measure(bench, (2, 3), (60, 70))
    assert [record["how"] for record in table.records[:4]] == ["greedy", "temperature", "top_k", "top_p"]
    assert [(record["rows"], record["vocab"]) for record in table.records[::4]] == [(2, 60), (3, 60), (2, 70), (3, 70)]
    assert float(table.records[0]["floor_us"] or 0) == 2 * 60 * 4 / bench.copy_bytes_per_s * 1e6
    assert all(record["us"] and record["torch_us"] for record in table.records)
    draw_to = tmp_path / "s.png"
    assert save_figure(draw_to, lambda figure: sampling.draw(table, figure)).stat().st_size > 1000


@pytest.mark.parametrize("how", SamplingKind)
def test_torch_draws_what_may_be_drawn_alone(how: SamplingKind) -> None:
    logits = torch.randn(200, 60) * 3
    before = logits.clone()
    tokens = torch_way(how)(logits)
    assert torch.equal(logits, before)
    place = logits.sort(descending=True).indices.eq(tokens[:, None]).int().argmax(-1)
    highest = {SamplingKind.GREEDY: 0, SamplingKind.TEMPERATURE: 59, SamplingKind.TOP_K: 49, SamplingKind.TOP_P: 59}
    assert int(place.max()) <= highest[how]
    if how is SamplingKind.TOP_P:
        probs = (logits / 0.8).softmax(-1)
        above = [float(own[own > own[token]].sum()) for own, token in zip(probs, tokens, strict=True)]
        assert max(above) < 0.9 + 1e-5
    if how is not SamplingKind.GREEDY:
        assert len(set(place.tolist())) > 3, "not the best token alone"


@pytest.mark.parametrize("how", SamplingKind)
def test_one_that_takes_another_token_is_an_error(monkeypatch: pytest.MonkeyPatch, how: SamplingKind) -> None:
    def worst(logits: Tensor, rows: object) -> Tensor:
        return logits.argmin(-1)

    monkeypatch.setattr(sampling, "sample", worst)
    with pytest.raises(ArithmeticError, match=f"sample, {how}, of 2 rows takes a token"):
        sampling._check(how, torch.randn(2, 60), make_rows(how, 2, torch.device("cpu")))
