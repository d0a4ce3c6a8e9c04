"""Quotas of tenants: requests at a time, and requests and tokens in any minute.

A minute is a sliding one. A request counts in the minute from its arrival on, with its prompt and the longest answer it
may get; what it did not use is given back when it ends. So no minute's requests ever use more than the limit.
"""

from collections import Counter, deque
from operator import itemgetter

from msgspec import structs

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors import Forbidden, InvalidRequest, PunicaError, QuotaExceeded
from punica_serve.errors.invariants import require
from punica_serve.numbers import counted
from punica_serve.protocol import RateLimits, TenantQuota

MINUTE_NS = 60 * 10**9
#: Nobody knows when a request ends.
CONCURRENT_RETRY_S = 1.0


class _Minute:
    """A tenant's requests of the last minute."""

    def __init__(self) -> None:
        #: Request id -> the tokens that count.
        self.tokens: dict[str, int] = {}
        self.num_tokens = 0
        #: (when it counts no longer, request id) of each, in this order: time only goes on.
        self._ends: deque[tuple[int, str]] = deque()

    def add(self, request_id: str, num_tokens: int, now_ns: int) -> None:
        """One that has counted before counts from its first arrival on."""
        if request_id not in self.tokens:
            self._ends.append((now_ns + MINUTE_NS, request_id))
        self.set(request_id, num_tokens)

    def set(self, request_id: str, num_tokens: int) -> None:
        self.num_tokens += num_tokens - self.tokens.get(request_id, 0)
        self.tokens[request_id] = num_tokens

    def advance(self, now_ns: int) -> None:
        """Forgets what is a minute old."""
        while self._ends and self._ends[0][0] <= now_ns:
            _, request_id = self._ends.popleft()
            self.num_tokens -= self.tokens.pop(request_id)

    def wait_s(self, num_requests: int, num_tokens: int, now_ns: int) -> float:
        """Until so many requests, at least one, and so many tokens of those that count now count no longer."""
        for end_ns, request_id in self._ends:
            num_requests -= 1
            num_tokens -= self.tokens[request_id]
            if num_requests <= 0 and num_tokens <= 0:
                return (end_ns - now_ns) / 1e9
        return MINUTE_NS / 1e9

    def reset_s(self, now_ns: int) -> float:
        """Until nothing of now counts any more."""
        return (self._ends[-1][0] - now_ns) / 1e9 if self._ends else 0.0

    def check_invariants(self) -> None:
        require(sorted(self.tokens) == sorted(request_id for _, request_id in self._ends), "a minute has lost one")
        require(list(self._ends) == sorted(self._ends, key=itemgetter(0)), "a minute is out of order")
        require(self.num_tokens == sum(self.tokens.values()), "tokens of a minute")


class Quotas:
    """Counts what has been admitted, by tenants' ids. Tenants without limits by the minute have no minute kept."""

    def __init__(self) -> None:
        self._num_live: Counter[str] = Counter()
        self._minutes: dict[str, _Minute] = {}

    def refusal(self, record: RequestRecord, quota: TenantQuota | None, now_ns: int) -> PunicaError | None:
        """Why the request's tenant may not have it now, if so; InvalidRequest for one that it may never have, and
        Forbidden where it may have none.
        """
        tenant_id, tenant = record.request.tenant_id, record.request.tenant
        if tenant_id is None or quota is None:
            return None
        if nothing := [name for name, limit in structs.asdict(quota).items() if limit == 0]:
            return Forbidden(
                f"tenant {tenant!r} may run no requests: its quota `{nothing[0]}` is 0; ask an administrator"
            )
        limit = quota.tokens_per_min
        if limit is not None and record.request.max_num_tokens > limit:
            return InvalidRequest(
                f"`max_tokens`: a prompt of {counted(record.num_prompt, 'token')} and an answer of up to "
                f"{record.max_tokens} are more than the {counted(limit, 'token')} a minute of tenant {tenant!r}; set a "
                "lower max_tokens, or shorten the prompt",
                param="max_tokens",
            )
        limit = quota.max_concurrent
        if limit is not None and self._num_live[tenant_id] >= limit:
            return QuotaExceeded(
                f"tenant {tenant!r} has {counted(limit, 'request')} running or waiting, and may have no more at a "
                "time; try again when one has ended",
                retry_after_s=CONCURRENT_RETRY_S,
            )
        return self._refusal_by_the_minute(record, quota, now_ns)

    def _refusal_by_the_minute(self, record: RequestRecord, quota: TenantQuota, now_ns: int) -> QuotaExceeded | None:
        tenant = record.request.tenant
        minute = self._minutes.get(record.request.tenant_id or "")
        if minute is None:
            minute = _Minute()
        minute.advance(now_ns)
        num_tokens = record.request.max_num_tokens
        num_excess = _excess(len(minute.tokens) + 1, quota.requests_per_min)
        num_excess_tokens = _excess(minute.num_tokens + num_tokens, quota.tokens_per_min)
        wait_s = minute.wait_s(num_excess, num_excess_tokens, now_ns)
        if num_excess and (limit := quota.requests_per_min):
            return QuotaExceeded(
                f"tenant {tenant!r} may begin {counted(limit, 'request')} a minute, and has; "
                f"try again in {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if num_excess_tokens and (limit := quota.tokens_per_min):
            return QuotaExceeded(
                f"tenant {tenant!r} may use {counted(limit, 'token')} a minute; {minute.num_tokens} are used or "
                f"reserved, and this request needs up to {num_tokens}: try again in {wait_s:.1f} s, or set a lower "
                "max_tokens",
                retry_after_s=wait_s,
            )
        return None

    def rate_limits(self, record: RequestRecord, quota: TenantQuota | None, now_ns: int) -> RateLimits | None:
        """The tenant's remaining limits after this request; None without limits per minute."""
        tenant_id = record.request.tenant_id
        if tenant_id is None or quota is None or (quota.requests_per_min is None and quota.tokens_per_min is None):
            return None
        minute = self._minutes.get(tenant_id) or _Minute()
        minute.advance(now_ns)
        return RateLimits(
            record.handle,
            quota.requests_per_min,
            _left(quota.requests_per_min, len(minute.tokens)),
            quota.tokens_per_min,
            _left(quota.tokens_per_min, minute.num_tokens),
            minute.reset_s(now_ns),
        )

    def admit(self, record: RequestRecord, quota: TenantQuota | None, now_ns: int) -> None:
        """The request counts from now on."""
        tenant_id = record.request.tenant_id
        if tenant_id is None:
            return
        self._num_live[tenant_id] += 1
        if quota is not None and (quota.requests_per_min is not None or quota.tokens_per_min is not None):
            minute = self._minutes.setdefault(tenant_id, _Minute())
            minute.add(record.request_id, record.request.max_num_tokens, now_ns)

    def release(self, record: RequestRecord) -> None:
        """The request has ended: what it reserved and did not use is given back."""
        tenant_id = record.request.tenant_id
        if tenant_id is None:
            return
        self._num_live[tenant_id] -= 1
        if not self._num_live[tenant_id]:
            del self._num_live[tenant_id]
        minute = self._minutes.get(tenant_id)
        if minute is not None and record.request_id in minute.tokens:
            minute.set(record.request_id, record.num_tokens)

    def advance(self, now_ns: int) -> None:
        """Forgets what is over."""
        for tenant_id, minute in list(self._minutes.items()):
            minute.advance(now_ns)
            if not minute.tokens:
                del self._minutes[tenant_id]

    def check_invariants(self, tenant_ids: Counter[str]) -> None:
        """Against the tenants of all live requests. AssertionError is a bug of ours."""
        require(self._num_live == tenant_ids, "live requests of tenants")
        for minute in self._minutes.values():
            minute.check_invariants()


def _left(limit: int | None, num_used: int) -> int | None:
    """A limit may have been lowered since."""
    return None if limit is None else max(0, limit - num_used)


def _excess(number: int, limit: int | None) -> int:
    """By how much the number exceeds the limit."""
    return 0 if limit is None else max(0, number - limit)
