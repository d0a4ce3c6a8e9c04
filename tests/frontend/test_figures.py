import asyncio

import pytest

from punica_frontend.figures import Distribution, Figures, outcome_of
from punica_serve.errors import OutOfCapacity


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    times = Distribution([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 7.0):
        times.observe(value)
    assert (times.counts, times.sum) == ([2, 1, 1], 10.0)


def test_a_request_from_its_beginning_to_its_end() -> None:
    figures = Figures()
    request = figures.begin(10.0, num_prompt_tokens=4)
    assert figures.num_live == 1
    request.add_tokens(1, 10.5)
    request.outcome = "stop"
    request.end()
    assert (figures.num_live, figures.num_ended) == (0, {"stop": 1})
    assert (figures.num_prompt_tokens, figures.num_generated_tokens) == (4, 1)
    assert figures.first_token_s.sum == 0.5


def test_a_request_of_which_nobody_says_how_it_ended_was_cancelled() -> None:
    figures = Figures()
    figures.begin(0.0, num_prompt_tokens=1).end()
    assert figures.num_ended == {"cancelled": 1}


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    figures = Figures()
    request = figures.begin(0.0, num_prompt_tokens=1)
    request.add_tokens(1, 1.0)
    request.add_tokens(0, 1.5)
    request.add_tokens(4, 3.0)
    assert figures.inter_token_s.counts[figures.inter_token_s.bounds.index(0.5)] == 4
    assert figures.inter_token_s.sum == 2.0
    assert sum(figures.first_token_s.counts) == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfCapacity("full"), "out_of_capacity"),
        (RuntimeError("ours"), "internal_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_what_an_error_counts_as(error: BaseException, outcome: str) -> None:
    assert outcome_of(error) == outcome
