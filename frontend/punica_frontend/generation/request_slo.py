"""The promises of a request: its own, and its tenant's where it has none."""

from punica_serve.errors import InvalidRequest
from punica_serve.numbers import limit
from punica_serve.protocol import NO_SLO, Limits, Slo


def promised(own: Slo | None, of_tenant: Slo, limits: Limits | None) -> Slo | None:
    """Returns the SLO that counts for a request for good; None if nothing is promised.

    Raises InvalidRequest for a promise of its own that no idle GPU could keep, by the scheduler's profile. A tenant's
    is not checked: it is broken and counted.
    """
    own = own or NO_SLO
    if limits:
        _check(own.first_token_s, limits.least_first_token_s, "first_token_s", "a prompt of one token")
        _check(own.time_per_token_s, limits.least_time_per_token_s, "time_per_token_s", "each token of a lone request")
    slo = own.over(of_tenant)
    return None if slo == NO_SLO else slo


def _check(promised_s: float | None, least_s: float, name: str, what: str) -> None:
    if promised_s is not None and promised_s < least_s:
        message = f"`slo.{name}` is {limit(promised_s)}, but an idle GPU needs {limit(least_s)} s for {what}"
        raise InvalidRequest(f"{message}; promise at least that, or leave it out", param=f"slo.{name}")
