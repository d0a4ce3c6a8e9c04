"""Judges the promises of a request that has ended: each is kept, broken, or not judged. Pure.

- A completed request is judged by its times, as its client saw them.
- A request that the cluster failed, for want of capacity too, breaks all its promises.
- A request that its client cancelled, or whose fault was its client's, is not judged.
- A completed answer without a second token has no time per token to judge.
"""

from punica_serve.errors import (
    ClusterUnavailable,
    OutOfCapacity,
    PunicaError,
    RegistryUnavailable,
    RequestFailed,
    StoreUnavailable,
)
from punica_serve.protocol import NO_PROMISES, PromiseCounts, Slo

#: Outcomes of requests that were completed.
COMPLETED = frozenset({"stop", "length"})
#: Error codes for which the operator has to act. A tenant's used up quota and a slow reader are not among them.
_FAILED = frozenset(
    kind.code
    for kind in (PunicaError, RequestFailed, OutOfCapacity, ClusterUnavailable, RegistryUnavailable, StoreUnavailable)
)


def judge(
    slo: Slo | None, outcome: str, *, first_token_s: float | None, time_per_token_s: float | None
) -> PromiseCounts:
    """Returns the judged promises of one request. ``outcome`` is a finish reason or an error code.

    Times are those that were measured, in seconds; None where there was no such token.
    """
    if slo is None or not (outcome in COMPLETED or outcome in _FAILED):
        return NO_PROMISES
    has_failed = outcome in _FAILED
    first = _verdict(slo.first_token_s, first_token_s, has_failed)
    per_token = _verdict(slo.time_per_token_s, time_per_token_s, has_failed)
    verdicts = (first is True, first is False, per_token is True, per_token is False)
    return PromiseCounts(*map(int, verdicts))


def _verdict(promised_s: float | None, measured_s: float | None, has_failed: bool) -> bool | None:
    """Whether the promise was kept; None if it is not judged."""
    if promised_s is None or (measured_s is None and not has_failed):
        return None
    return not has_failed and measured_s is not None and measured_s <= promised_s
