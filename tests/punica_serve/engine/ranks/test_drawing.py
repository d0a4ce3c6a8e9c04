"""Ranks that divide the vocabulary sample what one rank samples from all of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from examples import examples
from filter_cases import random_filters, random_logits, without_near_ties
from punica_kernels.sampling_rows import Filters, SamplingRows, scale_logits
from punica_serve.engine.ranks.drawing import Drawing, drawing_of
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from thread_ranks import run_ranks

VOCAB_SIZE, NUM_ROWS = 99, 24


def rows_of(filters: Filters | None) -> SamplingRows:
    temperatures = torch.tensor([0.0, 0.7, 1.0, 2.0] * (NUM_ROWS // 4))
    return SamplingRows(temperatures, torch.arange(NUM_ROWS) * 7919, torch.arange(NUM_ROWS), filters)


def own(logits: Tensor, drawing: Drawing) -> Tensor:
    return logits[:, drawing.vocabulary.start : drawing.vocabulary.stop].contiguous()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_samples_what_one_samples(dtype: torch.dtype, filtered: bool, size: int) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(NUM_ROWS, VOCAB_SIZE) * 3).to(dtype)
    logits[5, 98] = torch.nan
    numbers = torch.tensor([1, 2, 3, 5, 7])
    filters = Filters(
        numbers, torch.tensor([3, 0, 0, 4, 9]), torch.tensor([1.0, 0.5, 1.0, 0.9, 0.6]), torch.zeros(5) + 0.01
    )
    rows = rows_of(filters if filtered else None)
    expected = drawing_of(VOCAB_SIZE, SINGLE_RANK).sample(logits, rows)

    def run(collectives: Collectives) -> Tensor:
        drawing = drawing_of(VOCAB_SIZE, collectives)
        return drawing.sample(own(logits, drawing), rows)

    assert expected[5] == -1
    for tokens in run_ranks(size, run):
        assert torch.equal(tokens, expected)


@given(st.integers(1, 8), st.integers(0, 300), st.integers(0, 9999), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_ranks_sample_filtered_rows_as_one_rank_does(size: int, more_tokens: int, seed: int, masked: bool) -> None:
    """Of all rows about half have filters; some rows are not finite, some greedy."""
    rng = torch.Generator().manual_seed(seed)
    vocab_size = 8 * size + more_tokens
    logits = random_logits(rng, NUM_ROWS, vocab_size)
    if not masked:
        logits = logits.where(logits > -torch.inf, -1e4)
    logits[3, -1], logits[7] = torch.nan, -torch.inf
    rows = rows_of(None)
    numbers = ((torch.rand(NUM_ROWS, generator=rng) < 0.5) & (rows.temperatures > 0)).nonzero().squeeze(1)
    scores = scale_logits(logits[numbers], rows.temperatures[numbers])
    rows = rows_of(without_near_ties(scores, random_filters(rng, numbers, vocab_size)))
    expected = drawing_of(vocab_size, SINGLE_RANK).sample(logits, rows, masked=masked)

    def run(collectives: Collectives) -> Tensor:
        drawing = drawing_of(vocab_size, collectives)
        return drawing.sample(own(logits, drawing), rows, masked=masked)

    for tokens in run_ranks(size, run):
        assert torch.equal(tokens, expected)


@pytest.mark.parametrize("top_n", [0, 5, 60, 200])
def test_every_rank_knows_the_probabilities(top_n: int) -> None:
    torch.manual_seed(1)
    logits, chosen = torch.randn(NUM_ROWS, VOCAB_SIZE) * 3, torch.randint(VOCAB_SIZE, (NUM_ROWS,))
    expected = drawing_of(VOCAB_SIZE, SINGLE_RANK).logprobs(logits, chosen, top_n)

    def run(collectives: Collectives) -> tuple[Tensor, Tensor, Tensor]:
        drawing = drawing_of(VOCAB_SIZE, collectives)
        return drawing.logprobs(own(logits, drawing), chosen, top_n)

    for found in run_ranks(2, run):
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other)
