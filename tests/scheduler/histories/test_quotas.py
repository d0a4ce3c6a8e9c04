"""In any history tenants get what their quotas allow, no more and no less.

A ledger counts in the words of the promise: the requests that a tenant has here, and those that began within the last
minute, with the tokens that each may still take, or took. A new request is refused exactly where it would exceed a
limit, and is told when it would not any more.
"""

from collections import defaultdict
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from cluster_history import HISTORIES, ClusterHistory
from frontend_rules import FRONTENDS, TENANTS
from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Deliver
from punica_serve.protocol import RateLimits, Request, TenantQuota, WireError

MINUTE_NS = 60 * 10**9
#: Seldom with a limit of 0.
QUOTAS = st.builds(
    TenantQuota,
    st.sampled_from((None, None, 1, 2, 5, 0)),
    st.sampled_from((None, None, 2, 6, 9)),
    st.sampled_from((None, None, 10, 20, 40, 60)),
)


class Usage(NamedTuple):
    """By a tenant's requests that began within the last minute."""

    num_requests: int
    num_tokens: int

    def leaves_room_for(self, request: Request, quota: TenantQuota) -> bool:
        return _within(self.num_requests + 1, quota.requests_per_min) and _within(
            self.num_tokens + request.max_num_tokens, quota.tokens_per_min
        )


class QuotaHistory(ClusterHistory):
    def __init__(self) -> None:
        super().__init__()
        #: Requests that are queued or run, by tenant.
        self.here: dict[str, set[str]] = defaultdict(set)
        #: (incarnation of the scheduler, tenant) -> when each request began that counts by the minute. A restarted
        #: scheduler starts new minutes.
        self.began_ns: dict[tuple[int, str], dict[str, int]] = defaultdict(dict)

    @initialize(quotas=st.fixed_dictionaries(dict.fromkeys(TENANTS, QUOTAS)))
    def quotas_are_given(self, quotas: dict[str, TenantQuota]) -> None:
        self.quotas.update(quotas)

    @rule(tenant=st.sampled_from(TENANTS), quota=QUOTAS)
    def quota_changes(self, tenant: str, quota: TenantQuota) -> None:
        self.quotas[tenant] = quota

    @rule(tenant=st.sampled_from(TENANTS), prompts=st.lists(st.integers(1, 6), min_size=3, max_size=9))
    def tenant_asks_for_much(self, tenant: str, prompts: list[int]) -> None:
        self.requests_arrive(prompts, room=3, adapter=None, skew=0, frontend_id=FRONTENDS[0], tenant=tenant, slo=None)

    @rule(seconds=st.sampled_from((1, 20, 39, 61)))
    def seconds_pass(self, seconds: int) -> None:
        self.cluster.now_ns += seconds * 10**9
        self.cluster.tell(events.Tick())

    def observe(self, event: events.Event, actions: list[Action]) -> None:
        if isinstance(event, events.RequestArrived) and event.request.tenant_id and event.quota:
            self.check_arrival(event, event.request.tenant_id, event.quota, actions)
        self.here.clear()
        for record in self.cluster.scheduler._state.requests.values():
            self.here[record.request.tenant_id or ""].add(record.request_id)

    def check_arrival(
        self, event: events.RequestArrived, tenant: str, quota: TenantQuota, actions: list[Action]
    ) -> None:
        error, told = _answer(event.handle, actions)
        if event.is_new and not (error and is_other(error)):
            wanted = self.refusal(event.request, tenant, quota)
            assert (error.code if error else None) == wanted
            if error is not None and wanted == "quota_exceeded":
                self.check_retry(event.request, tenant, quota, error.retry_after_s)
        if error is None and (quota.requests_per_min, quota.tokens_per_min) != (None, None):
            self.count(event.request.request_id, tenant)
        if event.is_new and told is not None:
            self.check_told(told, tenant, quota)

    def refusal(self, request: Request, tenant: str, quota: TenantQuota) -> str | None:
        """The error code that the quota's words ask for."""
        if 0 in (quota.max_concurrent, quota.requests_per_min, quota.tokens_per_min):
            return "permission_denied"
        if not _within(request.max_num_tokens, quota.tokens_per_min):
            return "invalid_request"
        has_place = _within(len(self.here[tenant]) + 1, quota.max_concurrent)
        is_allowed = has_place and self.usage(tenant, self.cluster.now_ns).leaves_room_for(request, quota)
        return None if is_allowed else "quota_exceeded"

    def check_retry(self, request: Request, tenant: str, quota: TenantQuota, retry_after_s: float | None) -> None:
        """The minute has room at the time that the error names, if nothing else comes, and not before."""
        assert retry_after_s is not None
        if not _within(len(self.here[tenant]) + 1, quota.max_concurrent):
            return  # nobody knows when a request ends
        at_ns = self.cluster.now_ns + round(retry_after_s * 1e9)
        assert self.usage(tenant, at_ns).leaves_room_for(request, quota)
        assert not self.usage(tenant, at_ns - 1).leaves_room_for(request, quota)

    def check_told(self, told: RateLimits, tenant: str, quota: TenantQuota) -> None:
        """The client reads what its tenant has left."""
        usage = self.usage(tenant, self.cluster.now_ns)
        assert told.remaining_requests == _left(quota.requests_per_min, usage.num_requests)
        assert told.remaining_tokens == _left(quota.tokens_per_min, usage.num_tokens)
        assert self.usage(tenant, self.cluster.now_ns + round(told.reset_s * 1e9)).num_requests == 0

    def count(self, request_id: str, tenant: str) -> None:
        """One that is added again within its minute has counted already."""
        began_ns = self.began_ns[self.cluster.incarnation, tenant]
        if self.cluster.now_ns >= began_ns.get(request_id, -MINUTE_NS) + MINUTE_NS:
            began_ns[request_id] = self.cluster.now_ns
        self.here[tenant].add(request_id)

    def usage(self, tenant: str, now_ns: int) -> Usage:
        began_ns = self.began_ns[self.cluster.incarnation, tenant].items()
        names = [name for name, began_ns in began_ns if now_ns < began_ns + MINUTE_NS]
        return Usage(len(names), sum(self.num_tokens(name, tenant) for name in names))

    def num_tokens(self, name: str, tenant: str) -> int:
        stream = self.cluster.streams[name]
        is_here = name in self.here[tenant]
        return stream.request.max_num_tokens if is_here else stream.request.num_tokens + len(stream.tokens)


def is_other(error: WireError) -> bool:
    """Whether it is not for a quota that the request was refused: no GPU can run it."""
    is_of_quota = error.code in ("quota_exceeded", "permission_denied") or error.param == "max_tokens"
    return not is_of_quota or error.code == "context_length_exceeded"


def _answer(handle: int, actions: list[Action]) -> tuple[WireError | None, RateLimits | None]:
    """Why the request is refused, and what its tenant has left, as the actions tell its frontend."""
    deliveries = [action.deliveries for action in actions if isinstance(action, Deliver)]
    errors = [ending.error for each in deliveries for ending in each.endings if ending.handle == handle]
    limits = [limits for each in deliveries for limits in each.rate_limits if limits.handle == handle]
    return errors[0] if errors else None, limits[0] if limits else None


def _within(number: int, limit: int | None) -> bool:
    return limit is None or number <= limit


def _left(limit: int | None, num_used: int) -> int | None:
    return None if limit is None else max(0, limit - num_used)


QuotaHistory.TestCase.settings = HISTORIES
TestQuotas = QuotaHistory.TestCase
