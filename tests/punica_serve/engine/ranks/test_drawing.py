"""Ranks that divide the vocabulary sample what one rank samples from all of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from examples import examples
from filter_cases import random_filters, random_logits
from punica_kernels.sampling_rows import Filters, SamplingRows
from punica_serve.engine.ranks.drawing import Drawing, drawing_of
from punica_serve.models.collectives import SINGLE_RANK, Collectives
from thread_ranks import run_ranks

VOCAB_SIZE, NUM_ROWS = 99, 24


def rows_of(filters: Filters | None) -> SamplingRows:
    temperatures = torch.tensor([0.0, 0.7, 1.0, 2.0] * (NUM_ROWS // 4))
    return SamplingRows(temperatures, torch.arange(NUM_ROWS) * 7919, torch.arange(NUM_ROWS), filters)


class CountedCollectives(Collectives):
    """Counts the exchanges, and the bytes that they bring to this rank."""

    def __init__(self, collectives: Collectives) -> None:
        self.rank = collectives.rank
        self.num_exchanges = self.num_bytes = 0
        self._collectives = collectives

    def empty(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return self._collectives.empty(shape, dtype, device)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise AssertionError("sampling adds nothing up")

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._count(tensor.nbytes)
        return self._collectives.all_gather(tensor)

    def all_to_all(self, tensor: Tensor) -> Tensor:
        self._count(tensor[0].nbytes)
        return self._collectives.all_to_all(tensor)

    def _count(self, bytes_of_a_rank: int) -> None:
        self.num_exchanges += 1
        self.num_bytes += (self.rank.size - 1) * bytes_of_a_rank


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
    """Bit by bit. Of all rows about half have filters; some rows are not finite, some greedy."""
    rng = torch.Generator().manual_seed(seed)
    vocab_size = 8 * size + more_tokens
    logits = random_logits(rng, NUM_ROWS, vocab_size)
    if not masked:
        logits = logits.where(logits > -torch.inf, -1e4)
    logits[3, -1], logits[7] = torch.nan, -torch.inf
    rows = rows_of(None)
    numbers = ((torch.rand(NUM_ROWS, generator=rng) < 0.5) & (rows.temperatures > 0)).nonzero().squeeze(1)
    rows = rows_of(random_filters(rng, numbers, vocab_size))
    expected = drawing_of(vocab_size, SINGLE_RANK).sample(logits, rows, masked=masked)

    def run(collectives: Collectives) -> Tensor:
        drawing = drawing_of(vocab_size, collectives)
        return drawing.sample(own(logits, drawing), rows, masked=masked)

    for tokens in run_ranks(size, run):
        assert torch.equal(tokens, expected)


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("num_filtered", [1, 2, 7, 8, 9, 24])
def test_any_number_of_filtered_rows_is_divided(num_filtered: int, size: int) -> None:
    """Fewer than ranks, as many, or more. All logits are equal, so that sums of probabilities meet top_p."""
    numbers, logits = torch.arange(NUM_ROWS - num_filtered, NUM_ROWS), torch.zeros(NUM_ROWS, VOCAB_SIZE)
    shares = torch.arange(num_filtered).div(VOCAB_SIZE)
    rows = SamplingRows(
        torch.ones(NUM_ROWS),
        torch.arange(NUM_ROWS),
        torch.zeros(NUM_ROWS, dtype=torch.int64),
        Filters(numbers, 30 + numbers, shares, torch.zeros(num_filtered)),
    )
    expected = drawing_of(VOCAB_SIZE, SINGLE_RANK).sample(logits, rows)

    def run(collectives: Collectives) -> Tensor:
        drawing = drawing_of(VOCAB_SIZE, collectives)
        return drawing.sample(own(logits, drawing), rows)

    for tokens in run_ranks(size, run):
        assert torch.equal(tokens, expected)


# docs/notes/tensor-parallel.md has the bytes of the logits, in bfloat16.
@pytest.mark.parametrize(
    ("size", "num_filtered", "logit_bytes"),
    [
        (2, 1, 128_256),
        (4, 1, 192_384),
        (8, 1, 224_448),
        (2, 32, 2_052_096),
        (4, 32, 1_539_072),
        (8, 32, 897_792),
    ],
)
def test_filtered_rows_take_two_exchanges_of_their_shares(size: int, num_filtered: int, logit_bytes: int) -> None:
    logits = torch.zeros(num_filtered, 128_256, dtype=torch.bfloat16)
    zeros = torch.zeros(num_filtered, dtype=torch.int64)
    filters = Filters(torch.arange(num_filtered), zeros + 1, zeros + 1.0, zeros + 0.0)
    plain, filtered = (SamplingRows(zeros + 1.0, zeros, zeros, limits) for limits in (None, filters))

    def run(collectives: Collectives) -> list[tuple[int, int]]:
        found = []
        for rows in (plain, filtered):
            counted = CountedCollectives(collectives)
            drawing = drawing_of(128_256, counted)
            drawing.sample(own(logits, drawing), rows)
            found.append((counted.num_exchanges, counted.num_bytes))
        return found

    token_bytes = 8 * (size - 1) * -(-num_filtered // size)
    drawn_bytes = 16 * (size - 1) * num_filtered
    for found in run_ranks(size, run):
        assert found == [(1, drawn_bytes), (3, drawn_bytes + logit_bytes + token_bytes)]


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
