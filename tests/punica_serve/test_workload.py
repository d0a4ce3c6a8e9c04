from collections import Counter
from statistics import mean

import pytest

from punica_serve.workload import (
    Population,
    adapter_indices,
    alpaca_like_lengths,
    conversation_lengths,
    counts,
    maf_like,
    maf_like_rates,
    popularity,
    request_lengths,
    shipped_workload,
)


@pytest.mark.parametrize(
    ("population", "num_requests", "expected"),
    [
        (Population.DISTINCT, 4, [1, 1, 1, 1]),
        (Population.UNIFORM, 16, [4, 4, 4, 4]),
        (Population.UNIFORM, 32, [6, 6, 5, 5, 5, 5]),
        (Population.UNIFORM, 5, [2, 2, 1]),
        (Population.SKEWED, 1, [1]),
        (Population.SKEWED, 32, [11, 7, 5, 3, 2, 2, 1, 1]),
        (Population.SKEWED, 1000, [291, 194, 133, 129, 86, 57, 38, 25, 17, 11, 7, 5, 3, 2, 1, 1]),
        (Population.IDENTICAL, 9, [9]),
    ],
)
def test_counts(population: Population, num_requests: int, expected: list[int]) -> None:
    assert counts(population, num_requests) == expected


@pytest.mark.parametrize("population", Population)
def test_counts_sum_to_the_requests_most_popular_first(population: Population) -> None:
    for num_requests in range(70):
        adapter_counts = counts(population, num_requests)
        assert sum(adapter_counts) == num_requests
        assert adapter_counts == sorted(adapter_counts, reverse=True)
        assert all(adapter_counts)


@pytest.mark.parametrize("population", Population)
def test_indices_hold_the_counts_in_an_order_of_the_seed(population: Population) -> None:
    indices = adapter_indices(population, 100, seed=3)
    assert [Counter(indices)[adapter] for adapter in range(len(set(indices)))] == counts(population, 100)
    assert indices == adapter_indices(population, 100, seed=3)
    shuffled = population in (Population.UNIFORM, Population.SKEWED)
    assert (indices != sorted(indices)) == shuffled
    assert (indices != adapter_indices(population, 100, seed=4)) == shuffled


def test_lengths_are_those_of_the_shared_workload() -> None:
    """The first requests of seed 20231028, which every comparison with other systems uses."""
    lengths = request_lengths(1000, seed=20231028)
    assert lengths[:4] == [(63, 49), (152, 44), (29, 100), (517, 135)]
    assert mean(length.prompt for length in lengths) == pytest.approx(160, abs=0.1)
    assert mean(length.output for length in lengths) == pytest.approx(101, abs=0.1)
    assert {min(length.prompt for length in lengths), max(length.prompt for length in lengths)} == {4, 1024}
    assert min(length.output for length in lengths) >= 4
    assert max(length.output for length in lengths) <= 512


def test_the_shipped_workload_follows_its_rule() -> None:
    workload = shipped_workload()
    drawn = request_lengths(1000, seed=20231028)
    # Seven of its 2000 lengths lie midway between two integers, where numpy versions round differently.
    for shipped, here in zip(workload.lengths, drawn, strict=True):
        assert abs(shipped.prompt - here.prompt) <= 1 and abs(shipped.output - here.output) <= 1
    assert sum(length.prompt for length in workload.lengths) == 159_999
    assert sum(length.output for length in workload.lengths) == 101_000
    for population in Population:
        found = Counter(workload.adapters[population])
        assert [found[adapter] for adapter in range(len(found))] == counts(population, 1000)


def test_a_shorter_run_takes_the_first_requests() -> None:
    whole, short = shipped_workload(), shipped_workload(7)
    assert short.lengths == whole.lengths[:7]
    assert short.adapters[Population.SKEWED] == whole.adapters[Population.SKEWED][:7]


@pytest.mark.parametrize("num_requests", [0, 1001])
def test_it_has_a_thousand_requests(num_requests: int) -> None:
    with pytest.raises(ValueError, match=f"has 1000 requests, asked for {num_requests}"):
        shipped_workload(num_requests)


def test_prompts_of_conversations_hold_the_turns_before_them() -> None:
    own = request_lengths(2000, seed=3)
    assert conversation_lengths(2000, 3, mean_earlier_turns=0, longest_prompt=4096) == own
    turns = conversation_lengths(2000, 3, mean_earlier_turns=2.0, longest_prompt=4096)
    assert [length.output for length in turns] == [length.output for length in own]
    assert all(turn.prompt >= length.prompt for turn, length in zip(turns, own, strict=True))
    mean_turn = mean(length.prompt + length.output for length in own)
    added = mean(turn.prompt - length.prompt for turn, length in zip(turns, own, strict=True))
    assert added == pytest.approx(2.0 * mean_turn, rel=0.15)
    cut = conversation_lengths(2000, 3, mean_earlier_turns=2.0, longest_prompt=300)
    assert max(length.prompt for length in cut) == 300


def test_popularity_of_a_population_without_end() -> None:
    assert popularity(Population.SKEWED, 3) == pytest.approx([9 / 19, 6 / 19, 4 / 19])
    assert popularity(Population.UNIFORM, 4) == [0.25] * 4
    assert popularity(Population.IDENTICAL, 2) == [1.0, 0.0]


def test_alpaca_like_lengths_have_the_published_means() -> None:
    lengths = alpaca_like_lengths(20_000, seed=1)
    assert mean(length.prompt for length in lengths) == pytest.approx(19.31, rel=0.03)
    assert mean(length.output for length in lengths) == pytest.approx(58.45, rel=0.03)
    assert min(min(length) for length in lengths) >= 4 and max(length.output for length in lengths) <= 512
    assert alpaca_like_lengths(50, seed=1) == alpaca_like_lengths(50, seed=1) != alpaca_like_lengths(50, seed=2)


def test_maf_like_rates_have_the_published_quantiles() -> None:
    rates = maf_like_rates(10_000)
    assert rates == sorted(rates)
    assert sum(rate <= 1 for rate in rates) / len(rates) == pytest.approx(0.45, abs=0.001), "once an hour or less"
    assert sum(rate <= 60 for rate in rates) / len(rates) == pytest.approx(0.81, abs=0.001), "once a minute or less"
    most_popular = rates[-1860:]
    assert sum(most_popular) / sum(rates) == pytest.approx(0.996, abs=0.004)


@pytest.mark.parametrize("num_adapters", [1, 7, 128, 512])
def test_maf_like_shares_sum_to_one_and_are_skewed(num_adapters: int) -> None:
    shares = maf_like(num_adapters, seed=3)
    assert len(shares) == num_adapters and sum(shares) == pytest.approx(1) and min(shares) > 0
    assert shares == maf_like(num_adapters, seed=3)
    if num_adapters >= 128:
        assert sum(sorted(shares)[-num_adapters // 8 :]) > 0.5, "an eighth of the adapters get most requests"
