import pytest

from punica_frontend.metrics.metrics import Metrics, RequestMetrics, RequestParams
from punica_frontend.metrics.promise_judge import judge
from punica_serve.errors import ClusterUnavailable, InvalidRequest, OutOfCapacity, QuotaExceeded, RequestFailed
from punica_serve.protocol import NO_PROMISES, PromiseCounts, Slo

BOTH = Slo(1.0, 0.1)


def verdict(outcome: str, first_s: float | None, per_token_s: float | None, slo: Slo | None = BOTH) -> PromiseCounts:
    return judge(slo, outcome, first_token_s=first_s, time_per_token_s=per_token_s)


@pytest.mark.parametrize("outcome", ["stop", "length"])
def test_each_promise_of_a_completed_request_is_judged_by_itself(outcome: str) -> None:
    assert verdict(outcome, 1.0, 0.1) == PromiseCounts(first_token_kept=1, time_per_token_kept=1)
    assert verdict(outcome, 1.01, 0.1) == PromiseCounts(first_token_broken=1, time_per_token_kept=1)
    assert verdict(outcome, 0.5, 0.11) == PromiseCounts(first_token_kept=1, time_per_token_broken=1)


def test_only_what_was_promised_is_judged() -> None:
    assert verdict("stop", 9.0, 9.0, None) == NO_PROMISES
    assert verdict("stop", 9.0, 0.01, Slo(None, 0.1)) == PromiseCounts(time_per_token_kept=1)


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    assert verdict("stop", 0.5, None) == PromiseCounts(first_token_kept=1)
    assert verdict("stop", None, None) == NO_PROMISES


@pytest.mark.parametrize("kind", [RequestFailed, OutOfCapacity, ClusterUnavailable])
def test_a_request_that_the_cluster_failed_breaks_all_its_promises(kind: type[RequestFailed]) -> None:
    for first_s, per_token_s in ((None, None), (0.1, 0.01)):
        broken = PromiseCounts(first_token_broken=1, time_per_token_broken=1)
        assert verdict(kind.code, first_s, per_token_s) == broken
    assert verdict(kind.code, None, None, Slo(1.0)) == PromiseCounts(first_token_broken=1)


@pytest.mark.parametrize("outcome", ["cancelled", QuotaExceeded.code, InvalidRequest.code, "slow_reader"])
def test_what_a_client_ended_is_not_judged(outcome: str) -> None:
    assert verdict(outcome, 5.0, 5.0) == NO_PROMISES


def ended(metrics: Metrics, tenant: str, *, slo: Slo | None, outcome: str = "stop") -> RequestMetrics:
    """A request that arrived at 10 s, got its first token at 11 s, and two more by 11.4 s."""
    request = metrics.begin(10.0, RequestParams(4, 64, slo=slo), adapter="a", tenant=tenant)
    request.add_tokens(1, 11.0)
    request.add_tokens(2, 11.4)
    request.outcome = outcome
    request.end(30.0)
    return request


def test_times_are_the_clients_and_the_mean_is_over_the_gaps() -> None:
    metrics = Metrics()
    assert ended(metrics, "acme", slo=Slo(1.0, 0.201)).promises == PromiseCounts(1, 0, 1, 0)
    assert ended(metrics, "acme", slo=Slo(0.99, 0.199)).promises == PromiseCounts(0, 1, 0, 1)


def test_promises_are_counted_by_tenant_with_few_labels() -> None:
    metrics = Metrics(num_named=1)
    for tenant in ("acme", "bolt", "carl"):
        ended(metrics, tenant, slo=Slo(1.0, 0.1))
        ended(metrics, tenant, slo=None)
    promises = {name: stats.promises for name, stats in metrics.tenants.items()}
    assert promises == {"acme": PromiseCounts(1, 0, 0, 1), "other": PromiseCounts(2, 0, 0, 2)}
