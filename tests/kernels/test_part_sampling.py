"""Sampling in parts of a vocabulary gives what sampling from all of it gives."""

import math

import pytest
import torch
from torch import Tensor

from punica_kernels.gpu import sampling as gpu_sampling
from punica_kernels.part_sampling import draw, pick_drawn
from punica_kernels.sampling import gumbel_noise, sample
from punica_kernels.sampling_rows import SamplingRows

INF = math.inf
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB_SIZE = 200
PARTS = (range(64), range(64, 136), range(136, VOCAB_SIZE))


def make_rows(temperatures: list[float]) -> SamplingRows:
    num_rows = len(temperatures)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,))
    return SamplingRows(torch.tensor(temperatures), seeds, torch.arange(num_rows) * 977)


def sample_in_parts(logits: Tensor, rows: SamplingRows, *, masked: bool = False) -> Tensor:
    parts = [draw(logits[:, part.start : part.stop], rows, part.start, masked=masked) for part in PARTS]
    tokens = torch.full((len(logits),), -7)
    pick_drawn(torch.stack(parts), rows.temperatures, tokens)
    return tokens


def test_parts_draw_what_the_whole_draws() -> None:
    logits = torch.randn(300, VOCAB_SIZE) * 2
    rows = make_rows([0.0, 0.3, 1.0, 5.0, 1e-30] * 60)
    assert torch.equal(sample_in_parts(logits, rows), sample(logits, rows))


def test_ties_go_to_the_lowest_token() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    assert sample_in_parts(logits, make_rows([0.0])).tolist() == [0]


@pytest.mark.parametrize("bad", [math.nan, INF, -INF])
def test_a_row_that_is_not_finite_anywhere_gives_no_token(bad: float) -> None:
    logits = torch.randn(3, VOCAB_SIZE)
    logits[1, 150] = bad
    tokens = sample_in_parts(logits, make_rows([0.0, 1.0, 1.0]))
    assert (tokens >= 0).tolist() == [True, False, True]


def test_tokens_may_be_masked_even_all_of_a_part() -> None:
    logits = torch.randn(3, VOCAB_SIZE)
    logits[0, :64] = -INF
    logits[1] = -INF
    rows = make_rows([1.0, 1.0, 0.0])
    tokens = sample_in_parts(logits, rows, masked=True)
    assert torch.equal(tokens, sample(logits, rows, masked=True))
    assert tokens[1] == -1


def test_noise_of_a_part_is_that_of_the_whole() -> None:
    seeds, positions = torch.tensor([3, -9]), torch.tensor([0, 5])
    whole = gumbel_noise(seeds, positions, VOCAB_SIZE)
    assert torch.equal(gumbel_noise(seeds, positions, 71, first_token=64), whole[:, 64:135])


@pytest.mark.parametrize("masked", [False, True])
def test_the_gpu_draws_and_picks_alike(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sampling, "_BLOCK", 32)
    logits = (torch.randn(6, VOCAB_SIZE) * 2).to(DEVICE)
    logits[3, 140] = torch.nan
    if masked:
        logits[4, 64:136] = -INF
    rows = make_rows([0.0, 0.5, 1.0, 1.0, 2.0, 0.0])
    temperatures, seeds, positions = (each.to(DEVICE) for each in (rows.temperatures, rows.seeds, rows.positions))
    parts = [
        gpu_sampling.draw(logits[:, part.start : part.stop], temperatures, seeds, positions, part.start, masked=masked)
        for part in PARTS
    ]
    tokens = torch.full((6,), -7, device=DEVICE)
    gpu_sampling.pick_drawn(tokens, torch.stack(parts), temperatures)
    assert torch.equal(tokens.cpu(), sample(logits.cpu(), rows, masked=masked))
