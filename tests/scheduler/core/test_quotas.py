"""Tenants get what their quotas allow, and no more."""

from collections.abc import Callable

import pytest

from punica_scheduler.core import events
from punica_scheduler.core.actions import Deliver
from punica_serve.protocol import Ending, RateLimits, Request, SamplingParams, TenantQuota, WireError
from scheduler_in_words import Cluster, NewCluster

SECOND_NS = 10**9


class Tenants:
    """Requests of tenants with quotas to a cluster with room for all; each prompt has one token."""

    def __init__(self, cluster: Cluster, quota: TenantQuota) -> None:
        self.cluster = cluster
        self.quota = quota
        self.num_requests = 0

    def asks(
        self, tenant: str = "acme", *, number: int = 1, max_tokens: int = 9, again: str | None = None
    ) -> WireError | None:
        """Why it is refused, if it is."""
        self.num_requests += 1
        name = again or f"r{self.num_requests}"
        sampling = SamplingParams(max_tokens=max_tokens)
        request = Request(name, self.num_requests, (1,), sampling, tenant_id=f"{tenant}-{number}", tenant=tenant)
        self.cluster.names[self.num_requests] = name
        self.cluster.tell(
            events.RequestArrived("frontend", self.num_requests, request, self.quota, is_new=again is None)
        )
        endings = self.endings()
        return endings[0].error if endings else None

    def endings(self) -> list[Ending]:
        deliveries = [action.deliveries for action in self.cluster.actions if isinstance(action, Deliver)]
        return [ending for delivery in deliveries for ending in delivery.endings]

    def rate_limits(self) -> list[RateLimits]:
        deliveries = [action.deliveries for action in self.cluster.actions if isinstance(action, Deliver)]
        return [each for delivery in deliveries for each in delivery.rate_limits]

    def waits(self, seconds: float) -> None:
        self.cluster.time_passes(seconds)


@pytest.fixture
def tenants(new_cluster: NewCluster) -> Callable[..., Tenants]:
    """Called with the quota of all tenants."""

    def with_quota(**limits: int) -> Tenants:
        cluster = new_cluster()
        cluster.gpu_joins("A", pages=4000, batch=400)
        return Tenants(cluster, TenantQuota(**limits))

    return with_quota


def test_so_many_requests_run_or_wait_at_a_time(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(max_concurrent=2)
    assert [callers.asks(), callers.asks()] == [None, None]
    refused = callers.asks()
    assert refused is not None and (refused.code, refused.retry_after_s) == ("quota_exceeded", 1.0)
    assert callers.asks("other") is None
    callers.cluster.is_cancelled("r1")
    assert callers.asks() is None


def test_so_many_requests_begin_in_any_minute(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(requests_per_min=100)
    num_admitted = 0
    for _ in range(400):
        num_admitted += callers.asks() is None
        callers.waits(0.1)
    assert num_admitted == 100
    refused = callers.asks()
    assert refused is not None and refused.retry_after_s is not None
    assert refused.retry_after_s == pytest.approx(20.0, abs=0.1)
    callers.waits(refused.retry_after_s)
    assert callers.asks() is None


def test_tokens_are_reserved_and_what_was_not_used_is_given_back(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(tokens_per_min=100)
    assert callers.asks(max_tokens=59) is None
    refused = callers.asks(max_tokens=59)
    assert refused is not None and refused.retry_after_s == pytest.approx(60.0)
    callers.cluster.steps("A", "r1", finished="r1")  # it used two of its sixty
    assert callers.asks(max_tokens=97) is None
    assert callers.asks(max_tokens=1) is not None


def test_a_refusal_names_the_time_when_no_limit_is_in_the_way_any_more(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(requests_per_min=2, tokens_per_min=100)
    assert callers.asks(max_tokens=9) is None
    callers.waits(20)
    assert callers.asks(max_tokens=79) is None
    refused = callers.asks(max_tokens=59)  # in 40 s it could begin, but would have too few tokens
    assert refused is not None and refused.retry_after_s == pytest.approx(60.0)
    callers.waits(60)
    assert callers.asks(max_tokens=59) is None


def test_a_request_beyond_a_whole_minute_s_tokens_is_told_so(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(tokens_per_min=100, max_concurrent=1)
    assert callers.asks(max_tokens=9) is None
    refused = callers.asks(max_tokens=100)  # whatever else is in the way: waiting does not help
    assert refused is not None
    assert (refused.code, refused.param, refused.retry_after_s) == ("invalid_request", "max_tokens", None)


@pytest.mark.parametrize("name", ["max_concurrent", "requests_per_min", "tokens_per_min"])
def test_a_quota_of_nothing_is_no_matter_of_waiting(tenants: Callable[..., Tenants], name: str) -> None:
    refused = tenants(**{name: 0}).asks(max_tokens=1)
    assert refused is not None
    assert (refused.code, refused.retry_after_s) == ("permission_denied", None)
    assert f"`{name}` is 0" in refused.message


def test_what_comes_again_counts_once_and_is_never_refused(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(requests_per_min=2, max_concurrent=2)
    callers.asks()
    callers.cluster.tell(events.FrontendLost("frontend"))
    assert [callers.asks(again="r1"), callers.asks()] == [None, None]
    assert [callers.asks(again="old 1"), callers.asks(again="old 2")] == [None, None]
    assert callers.asks() is not None
    callers.waits(61)
    assert callers.asks() is not None  # four still run
    for name in ("r1", "old 1", "old 2"):
        callers.cluster.is_cancelled(name)
    assert callers.asks() is None


def test_no_minute_uses_more_than_the_limit_and_little_is_left(tenants: Callable[..., Tenants]) -> None:
    """A tenant that always asks for more, now and then for longer answers than it takes."""
    callers = tenants(tokens_per_min=1000)
    used: list[tuple[int, int]] = []
    for _ in range(200):
        for reserved in (9, 4, 4, 4, 4, 4):
            if callers.asks(max_tokens=reserved) is None:
                name = f"r{callers.num_requests}"
                for _ in range(3):
                    callers.cluster.steps("A", name)
                callers.cluster.steps("A", name, finished=name)
                used.append((callers.cluster.now_ns, 5))
        callers.waits(0.5)
    for end_ns, _ in used[len(used) // 2 :: 7]:
        in_minute = sum(tokens for at_ns, tokens in used if end_ns - 60 * SECOND_NS < at_ns <= end_ns)
        assert 990 <= in_minute <= 1000


def test_what_is_left_is_told_of_each_request_that_arrives(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(requests_per_min=3, tokens_per_min=25)
    assert callers.asks() is None
    assert callers.rate_limits() == [RateLimits(1, 3, 2, 25, 15, 60.0)]
    callers.waits(20.0)
    assert callers.asks() is None
    assert callers.rate_limits() == [RateLimits(2, 3, 1, 25, 5, 60.0)]
    callers.waits(10.0)
    refused = callers.asks()
    assert refused is not None and refused.code == "quota_exceeded"
    assert callers.rate_limits() == [RateLimits(3, 3, 1, 25, 5, 50.0)], "of one that is refused too"
    callers.waits(50.0)
    assert callers.asks("other") is None
    assert callers.rate_limits() == [RateLimits(4, 3, 2, 25, 15, 60.0)]
    assert callers.asks(again="r2") is None and callers.rate_limits() == []


def test_of_limits_that_there_are_not_nothing_is_told(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(max_concurrent=5)
    assert callers.asks() is None and callers.rate_limits() == []
    callers = tenants(tokens_per_min=100)
    assert callers.asks() is None
    assert callers.rate_limits() == [RateLimits(1, None, None, 100, 90, 60.0)]


def test_a_later_tenant_of_the_same_name_has_quotas_of_its_own(tenants: Callable[..., Tenants]) -> None:
    callers = tenants(requests_per_min=1, max_concurrent=1)
    assert callers.asks() is None and callers.asks() is not None
    assert callers.asks(number=2) is None
    refused = callers.asks(number=2)
    assert refused is not None and refused.message.startswith("tenant 'acme' has 1 request")
