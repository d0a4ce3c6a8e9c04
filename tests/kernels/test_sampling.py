import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from examples import examples
from punica_kernels.sampling import (
    apply_penalties,
    filter_logits,
    gumbel_noise,
    philox_4x32,
    philox_uniform,
    sample,
    token_logprobs,
)
from punica_kernels.sampling_rows import Filters, SamplingRows

INF = math.inf


def draw(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seeds: Tensor | int = 0,
    positions: Tensor | int = 0,
) -> Tensor:
    """`sample` with one value of each parameter for all rows."""
    num_rows = logits.shape[0]
    return sample_rows(
        logits,
        torch.full((num_rows,), temperature),
        torch.full((num_rows,), top_p),
        torch.full((num_rows,), top_k),
        torch.full((num_rows,), min_p),
        torch.as_tensor(seeds).expand(num_rows),
        torch.as_tensor(positions).expand(num_rows),
    )


def sample_rows(
    logits: Tensor,
    temperatures: Tensor,
    top_p: Tensor,
    top_k: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """`sample` with a value of each parameter per row."""
    rows = ((temperatures > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))).nonzero().squeeze(1)
    filters = Filters(rows, top_k[rows], top_p[rows], min_p[rows]) if rows.numel() else None
    return sample(logits, SamplingRows(temperatures, seeds, positions, filters), masked=True)


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers_of_random123(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    assert tuple(int(word) for word in philox_4x32((c0, c1, c2, c3), (k0, k1))) == words


def test_uniform_noise_is_that_of_seed_position_and_token() -> None:
    seed, position, token = -0x123456789ABCDEF, 77, 9
    bits = seed % 2**64
    key = (torch.tensor(bits % 2**32), torch.tensor(bits >> 32))
    counter = (torch.tensor(token // 4), torch.tensor(position), torch.tensor(0), torch.tensor(0))
    word = int(philox_4x32(counter, key)[token % 4])
    noise = philox_uniform(torch.tensor([3, seed]), torch.tensor([0, position]), 10)
    assert noise.dtype == torch.float32
    assert float(noise[1, token]) == ((word >> 9) + 0.5) / 2**23


def test_uniform_noise_is_open_and_even() -> None:
    noise = philox_uniform(torch.arange(100), torch.arange(100) * 7, 1001)
    assert 0 < noise.min() < 1e-4
    assert 1 - 1e-4 < noise.max() < 1
    assert abs(float(noise.mean()) - 0.5) < 4 / math.sqrt(12 * noise.numel())
    assert abs(float(torch.corrcoef(noise[:2])[0, 1])) < 4 / math.sqrt(1001)
    assert gumbel_noise(torch.arange(100), torch.arange(100), 1001).isfinite().all()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [(1.0, 0, 1.0, 0.0), (0.5, 0, 1.0, 0.0), (2.0, 4, 1.0, 0.0), (1.0, 0, 0.7, 0.0), (1.0, 0, 1.0, 0.2)],
)
def test_samples_follow_the_filtered_softmax(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    num_draws = 20_000
    logits = torch.tensor([0.0, 1.5, -1.0, 2.0, 0.5, 1.0, -3.0])
    scaled = (logits / temperature)[None].clone()
    filter_logits(scaled, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    expected = scaled[0].softmax(-1) * num_draws
    tokens = draw(
        logits.expand(num_draws, -1),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seeds=torch.arange(num_draws) // 100,
        positions=torch.arange(num_draws) % 100,
    )
    observed = torch.bincount(tokens, minlength=7)
    possible = expected > 0
    assert observed[~possible].sum() == 0
    chi_square = ((observed - expected)[possible] ** 2 / expected[possible]).sum()
    # 99.99th percentile of chi-square with 6 degrees of freedom; the seeds are fixed.
    assert chi_square < 27.9


@given(st.data())
@settings(max_examples=examples(30), deadline=None)
def test_a_row_never_depends_on_its_batch(data: st.DataObject) -> None:
    num_rows, vocab_size = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1, 5, 64, 301]))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    arguments = (
        torch.randn(num_rows, vocab_size, generator=rng) * 3,
        torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 0.7, 1.3]), min_size=num_rows, max_size=num_rows))),
        torch.tensor(data.draw(st.lists(st.sampled_from([1.0, 0.3, 0.9]), min_size=num_rows, max_size=num_rows))),
        torch.randint(0, 6, (num_rows,), generator=rng),
        torch.tensor(data.draw(st.lists(st.sampled_from([0.0, 0.1]), min_size=num_rows, max_size=num_rows))),
        torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=rng),
        torch.randint(0, 4096, (num_rows,), generator=rng),
    )
    together = sample_rows(*arguments).tolist()
    alone = [int(sample_rows(*(argument[row : row + 1] for argument in arguments))) for row in range(num_rows)]
    assert together == alone


def test_greedy_takes_the_lowest_of_equal_logits_and_leaves_the_logits() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, -INF]])
    before = logits.clone()
    assert draw(logits, temperature=0.0).tolist() == [1, 0]
    draw(logits, top_k=1, min_p=0.5)
    assert torch.equal(logits, before)


def test_an_impossible_token_is_never_sampled() -> None:
    logits = torch.zeros(500, 8)
    logits[:, ::2] = -INF
    tokens = draw(logits, positions=torch.arange(500))
    assert set(tokens.tolist()) == {1, 3, 5, 7}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_gives_no_token(temperature: float) -> None:
    logits = torch.randn(5, 8)
    logits[1, 3], logits[2, 7], logits[3, 0], logits[4] = torch.nan, INF, -INF, -INF
    rows = SamplingRows(torch.full((5,), temperature), torch.arange(5), torch.arange(5))
    assert (sample(logits, rows) >= 0).tolist() == [True, False, False, False, False]
    assert (sample(logits, rows, masked=True) >= 0).tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_sample_like_their_float32_copy(dtype: torch.dtype) -> None:
    logits = torch.randn(50, 40).to(dtype)
    rows = torch.arange(0, 50, 3)
    filters = Filters(rows, torch.full((17,), 5), torch.full((17,), 0.9), torch.full((17,), 0.1))
    how = SamplingRows(torch.full((50,), 0.9), torch.arange(50), torch.arange(50), filters)
    assert torch.equal(sample(logits, how), sample(logits.float(), how))


def test_rows_must_be_as_many_as_the_logits() -> None:
    with pytest.raises(ValueError, match=r"^seeds must"):
        sample(torch.zeros(2, 4), SamplingRows(torch.zeros(2), torch.arange(3), torch.arange(2)))


def apply_filters(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    num_rows, filtered = len(logits), logits.clone()
    filter_logits(
        filtered,
        torch.full((num_rows,), top_k),
        torch.full((num_rows,), top_p),
        torch.full((num_rows,), min_p),
    )
    return filtered


@pytest.mark.parametrize("seed", range(5))
def test_each_filter_is_transformers(seed: int) -> None:
    logits = torch.randn(6, 97, generator=torch.Generator().manual_seed(seed)) * 2
    ids = torch.zeros(6, 1, dtype=torch.int64)
    assert torch.equal(apply_filters(logits, top_k=11), TopKLogitsWarper(11)(ids, logits.clone()))
    assert torch.equal(apply_filters(logits, top_p=0.8), TopPLogitsWarper(0.8)(ids, logits.clone()))
    assert torch.equal(apply_filters(logits, min_p=0.05), MinPLogitsWarper(0.05)(ids, logits.clone()))


def test_filters_at_their_bounds() -> None:
    probs = torch.tensor([[0.125, 0.5, 0.25, 0.125]])
    logits = probs.log()

    def kept(**filters: float) -> list[int]:
        return apply_filters(logits, **filters).isfinite()[0].nonzero().flatten().tolist()  # type: ignore[arg-type]

    assert kept() == [0, 1, 2, 3]
    assert kept(top_p=0.75) == [1, 2]
    assert kept(top_p=0.76) == [0, 1, 2]  # the lower of two equal tokens
    assert kept(top_p=1e-9) == [1]
    assert kept(top_k=3) == [0, 1, 2]
    assert kept(top_k=100) == [0, 1, 2, 3]
    assert kept(top_k=2, top_p=0.6) == [1]  # 0.5 / 0.75 of what top_k leaves
    assert kept(min_p=1.0) == [1]


def test_rows_without_filters_keep_their_bits_beside_rows_with() -> None:
    logits = torch.randn(2, 4000) * 10
    filtered = logits.clone()
    filter_logits(filtered, torch.tensor([0, 5]), torch.ones(2), torch.zeros(2))
    assert torch.equal(filtered[0], logits[0])
    assert int(filtered[1].isfinite().sum()) == 5


def test_repetition_penalty_is_transformers() -> None:
    logits, ids = torch.randn(3, 20), torch.randint(0, 20, (3, 6))
    expected = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    prompt_mask = torch.zeros(3, 20, dtype=torch.bool).scatter_(1, ids[:, :4], True)
    output_counts = torch.zeros(3, 20, dtype=torch.int64).scatter_add_(1, ids[:, 4:], torch.ones_like(ids[:, 4:]))
    apply_penalties(logits, prompt_mask, output_counts, torch.full((3,), 1.7), torch.zeros(3), torch.zeros(3))
    torch.testing.assert_close(logits, expected)


def test_presence_and_frequency_count_the_output_alone() -> None:
    logits = torch.tensor([[1.0, 1.0, 1.0, -INF]])
    apply_penalties(
        logits,
        prompt_mask=torch.tensor([[True, False, False, False]]),
        output_counts=torch.tensor([[0, 0, 3, 1]]),
        repetition=torch.ones(1),
        presence=torch.tensor([0.5]),
        frequency=torch.tensor([0.25]),
    )
    assert logits.tolist() == [[1.0, 1.0, -0.25, -INF]]


@pytest.mark.parametrize("top_n", [0, 1, 4, 9])
def test_logprobs_are_of_the_softmax(top_n: int) -> None:
    logits = torch.randn(3, 6)
    token_ids = torch.tensor([5, 0, 2])
    chosen, top_ids, top_logprobs = token_logprobs(logits, token_ids, top_n)
    expected = logits.softmax(-1).log()
    torch.testing.assert_close(chosen, expected[torch.arange(3), token_ids])
    assert top_ids.shape == top_logprobs.shape == (3, min(top_n, 6))
    torch.testing.assert_close(top_logprobs, expected.sort(descending=True).values[:, :top_n])
    torch.testing.assert_close(expected.gather(1, top_ids), top_logprobs)


def test_tokens_go_where_they_are_wanted() -> None:
    logits, places = torch.randn(3, 20), torch.full((5,), -7)
    rows = SamplingRows(torch.zeros(3), torch.arange(3), torch.arange(3))
    tokens = sample(logits, rows, out=places[1:4])
    assert tokens.data_ptr() == places[1:].data_ptr()
    assert places.tolist() == [-7, *logits.argmax(1).tolist(), -7]


def test_places_of_another_number_are_refused() -> None:
    rows = SamplingRows(torch.zeros(3), torch.arange(3), torch.arange(3))
    with pytest.raises(ValueError, match="out"):
        sample(torch.zeros(3, 4), rows, out=torch.zeros(2, dtype=torch.int64))
