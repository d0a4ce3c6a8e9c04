import asyncio

import pytest

from punica_frontend.metrics.busiest import OTHER
from punica_frontend.metrics.distribution import Distribution
from punica_frontend.metrics.figures import Figures, RequestFigures, Use, outcome_of
from punica_serve.errors import OutOfCapacity
from punica_serve.protocol import Ending


def begin(figures: Figures, arrived_s: float = 0.0) -> RequestFigures:
    return figures.begin(arrived_s, 4, adapter="acme/roman", tenant="acme")


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    times = Distribution([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 7.0):
        times.observe(value)
    assert (times.counts, times.sum) == ([2, 1, 1], 10.0)


def test_a_request_from_its_beginning_to_its_end() -> None:
    figures = Figures()
    request = begin(figures, 10.0)
    assert (figures.num_waiting, figures.num_running, figures.waiting_adapters) == (1, 0, {"acme/roman": 1})
    request.add_tokens(1, 10.5)
    assert (figures.num_waiting, figures.num_running, figures.waiting_adapters) == (0, 1, {})
    request.outcome = "stop"
    request.end(12.0)
    assert (figures.num_waiting, figures.num_running, figures.num_ended) == (0, 0, {"stop": 1})
    assert (figures.num_prompt_tokens, figures.num_generated_tokens) == (4, 1)
    assert (figures.first_token_s.sum, figures.request_s.sum) == (0.5, 2.0)
    assert (figures.prompt_tokens.sum, figures.generated_tokens.sum) == (4, 1)


def test_a_request_of_which_nobody_says_how_it_ended_was_cancelled() -> None:
    figures = Figures()
    begin(figures).end(1.0)
    assert figures.num_ended == {"cancelled": 1}
    assert (figures.num_waiting, figures.waiting_adapters, sum(figures.request_s.counts)) == (0, {}, 0)


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    figures = Figures()
    request = begin(figures)
    request.add_tokens(1, 1.0)
    request.add_tokens(0, 1.5)
    request.add_tokens(4, 3.0)
    assert figures.inter_token_s.counts[figures.inter_token_s.bounds.index(0.5)] == 4
    assert figures.inter_token_s.sum == 2.0
    assert sum(figures.first_token_s.counts) == 1


def test_what_an_adapter_and_a_tenant_came_to_is_counted_at_the_end() -> None:
    figures = Figures()
    request = begin(figures)
    request.add_tokens(1, 1.0)
    request.add_tokens(4, 3.0)
    assert dict(figures.adapters.items()).keys() == {OTHER}
    request.end(4.0)
    for busiest, name in ((figures.adapters, "acme/roman"), (figures.tenants, "acme")):
        use = dict(busiest.items())[name]
        assert (use.num_requests, use.num_prompt_tokens, use.num_generated_tokens) == (1, 4, 5)
        assert (use.first_token_s.sum, use.token_s.sum) == (1.0, 0.5)


def test_a_request_without_a_second_token_says_nothing_of_the_time_between_two() -> None:
    figures = Figures()
    for num_tokens in (0, 1):
        request = begin(figures)
        request.add_tokens(num_tokens, 1.0)
        request.end(1.0)
    use: Use = dict(figures.tenants.items())["acme"]
    assert (use.num_requests, sum(use.first_token_s.counts), sum(use.token_s.counts)) == (2, 1, 0)


def test_what_the_scheduler_says_at_the_end() -> None:
    figures = Figures()
    figures.ended_in_cluster(Ending(1, 5, "stop", queue_s=0.2, num_evictions=2))
    figures.ended_in_cluster(Ending(2, 0, "error"))
    assert (figures.num_evictions, figures.queue_s.sum, sum(figures.queue_s.counts)) == (2, 0.2, 1)


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
