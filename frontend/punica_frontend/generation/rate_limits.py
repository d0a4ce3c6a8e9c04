"""The `x-ratelimit-*` headers: what is left of a tenant's limits per minute, in OpenAI's format.

The scheduler counts, since all requests pass through it, and reports what is left when it admits or refuses a request.
So the headers appear only if the scheduler saw the request and its tenant has such limits.
"""

from contextvars import ContextVar

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from punica_serve.protocol import RateLimits


class _LatestLimits:
    """The scheduler's latest report during one HTTP request."""

    rate_limits: RateLimits | None = None


_LATEST: ContextVar[_LatestLimits | None] = ContextVar("rate_limits", default=None)


def record_rate_limits(rate_limits: RateLimits) -> None:
    """Records limits for the headers of the current answer. Websocket frames have none."""
    latest = _LATEST.get()
    # Handles rise in the order of requests.
    if latest and (latest.rate_limits is None or latest.rate_limits.handle < rate_limits.handle):
        latest.rate_limits = rate_limits


class RateLimitHeaders:
    """An ASGI middleware that writes the headers. Answers begin with the first token or the refusal."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        latest = _LatestLimits()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start" and latest.rate_limits:
                MutableHeaders(scope=message).update(headers_of(latest.rate_limits))
            await send(message)

        token = _LATEST.set(latest)
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            _LATEST.reset(token)


def headers_of(limits: RateLimits) -> dict[str, str]:
    """Returns headers for the limits that exist."""
    headers: dict[str, str] = {}
    for what, limit, remaining in (
        ("requests", limits.limit_requests, limits.remaining_requests),
        ("tokens", limits.limit_tokens, limits.remaining_tokens),
    ):
        if limit is not None:
            headers[f"x-ratelimit-limit-{what}"] = str(limit)
            headers[f"x-ratelimit-remaining-{what}"] = str(remaining)
            headers[f"x-ratelimit-reset-{what}"] = f"{limits.reset_s:.3f}s"
    return headers
