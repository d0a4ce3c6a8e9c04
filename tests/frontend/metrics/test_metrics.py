import asyncio

import pytest

from punica_frontend.metrics.bounded_labels import OTHER
from punica_frontend.metrics.distribution import Distribution
from punica_frontend.metrics.metrics import Metrics, RequestMetrics, RequestParams, UsageStats, outcome_of
from punica_serve.errors import OutOfCapacity
from punica_serve.protocol import Ending


def begin(metrics: Metrics, arrived_s: float = 0.0) -> RequestMetrics:
    return metrics.begin(arrived_s, RequestParams(4, 64), adapter="acme/roman", tenant="acme")


def test_a_value_counts_in_the_first_bucket_that_holds_it() -> None:
    times = Distribution([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 7.0):
        times.observe(value)
    assert (times.counts, times.sum) == ([2, 1, 1], 10.0)


def test_a_request_from_its_beginning_to_its_end() -> None:
    metrics = Metrics()
    request = begin(metrics, 10.0)
    assert (metrics.num_waiting, metrics.num_running, metrics.waiting_adapters) == (1, 0, {"acme/roman": 1})
    request.add_tokens(1, 10.5)
    assert (metrics.num_waiting, metrics.num_running, metrics.waiting_adapters) == (0, 1, {})
    request.outcome = "stop"
    request.end(12.0)
    assert (metrics.num_waiting, metrics.num_running, metrics.num_ended) == (0, 0, {"stop": 1})
    assert (metrics.num_prompt_tokens, metrics.num_generated_tokens) == (4, 1)
    assert (metrics.first_token_s.sum, metrics.request_s.sum) == (0.5, 2.0)
    assert (metrics.prompt_tokens.sum, metrics.generated_tokens.sum) == (4, 1)


def test_a_request_without_an_outcome_counts_as_cancelled() -> None:
    metrics = Metrics()
    begin(metrics).end(1.0)
    assert metrics.num_ended == {"cancelled": 1}
    assert (metrics.num_waiting, metrics.waiting_adapters, sum(metrics.request_s.counts)) == (0, {}, 0)


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    metrics = Metrics()
    request = begin(metrics)
    request.add_tokens(1, 1.0)
    request.add_tokens(0, 1.5)
    request.add_tokens(4, 3.0)
    assert metrics.inter_token_s.counts[metrics.inter_token_s.bounds.index(0.5)] == 4
    assert metrics.inter_token_s.sum == 2.0
    assert sum(metrics.first_token_s.counts) == 1


def test_totals_by_adapter_and_tenant_are_counted_at_the_end() -> None:
    metrics = Metrics()
    request = begin(metrics)
    request.add_tokens(1, 1.0)
    request.add_tokens(4, 3.0)
    assert dict(metrics.adapters.items()).keys() == {OTHER}
    request.end(4.0)
    for labels, name in ((metrics.adapters, "acme/roman"), (metrics.tenants, "acme")):
        use = dict(labels.items())[name]
        assert (use.num_requests, use.num_prompt_tokens, use.num_generated_tokens) == (1, 4, 5)
        assert (use.first_token_s.sum, use.token_s.sum) == (1.0, 0.5)


def test_a_request_without_a_second_token_says_nothing_of_the_time_between_two() -> None:
    metrics = Metrics()
    for num_tokens in (0, 1):
        request = begin(metrics)
        request.add_tokens(num_tokens, 1.0)
        request.end(1.0)
    use: UsageStats = dict(metrics.tenants.items())["acme"]
    assert (use.num_requests, sum(use.first_token_s.counts), sum(use.token_s.counts)) == (2, 1, 0)


def test_the_schedulers_report_at_the_end() -> None:
    metrics = Metrics()
    begin(metrics).ended_in_cluster(Ending(1, 5, "stop", queue_s=0.2, num_evictions=2))
    begin(metrics).ended_in_cluster(Ending(2, 0, "error"))
    assert (metrics.num_evictions, metrics.queue_s.sum, sum(metrics.queue_s.counts)) == (2, 0.2, 1)


@pytest.mark.parametrize("is_reported_first", [True, False])
def test_the_times_of_a_completed_request(*, is_reported_first: bool) -> None:
    """After a stop string the scheduler's report follows the end here."""
    metrics = Metrics()
    request = begin(metrics)
    request.add_tokens(1, 1.0)
    request.add_tokens(4, 3.0)
    request.outcome = "stop"
    ending = Ending(1, 5, "stop", prefill_s=0.25)
    if is_reported_first:
        request.ended_in_cluster(ending)
        request.end(4.0)
    else:
        request.end(4.0)
        request.ended_in_cluster(ending)
    times = (metrics.prefill_s, metrics.decode_s, metrics.inference_s, metrics.token_s)
    assert [each.sum for each in times] == [0.25, 2.0, 2.25, 0.5]
    assert [sum(each.counts) for each in times] == [1, 1, 1, 1]


def test_a_request_that_was_not_completed_has_no_times() -> None:
    metrics = Metrics()
    request = begin(metrics)
    request.add_tokens(2, 1.0)
    request.end(4.0)
    request.ended_in_cluster(Ending(1, 2, "cancelled", prefill_s=0.25))
    for times in (metrics.prefill_s, metrics.decode_s, metrics.inference_s, metrics.token_s, metrics.max_tokens):
        assert not sum(times.counts)


def test_a_single_token_takes_no_decode_time() -> None:
    metrics = Metrics()
    request = begin(metrics)
    request.add_tokens(1, 1.0)
    request.outcome = "length"
    request.end(1.0)
    assert (metrics.decode_s.sum, sum(metrics.decode_s.counts), sum(metrics.token_s.counts)) == (0.0, 1, 0)
    assert not sum(metrics.inference_s.counts), "the scheduler has not reported its prefill"


def test_the_choices_of_a_prompt_are_counted_once() -> None:
    metrics = Metrics()
    for num_choices in (3, 0, 0):
        request = metrics.begin(0.0, RequestParams(4, 64, num_choices), adapter="acme/roman", tenant="acme")
        request.outcome = "stop"
        request.end(1.0)
    assert (metrics.num_choices.sum, sum(metrics.num_choices.counts)) == (3, 1)
    assert (metrics.max_tokens.sum, sum(metrics.max_tokens.counts)) == (192, 3)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfCapacity("full"), "out_of_capacity"),
        (RuntimeError("ours"), "internal_error"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_the_outcome_of_an_error(error: BaseException, outcome: str) -> None:
    assert outcome_of(error) == outcome
