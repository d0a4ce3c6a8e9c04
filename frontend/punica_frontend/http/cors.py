"""Cross-origin requests: the operator's allowed origins may call with an API key, never with a cookie."""

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from punica_frontend.api.errors import METHODS, refusal_of

#: Answer headers that scripts may read, besides those that browsers always expose.
EXPOSED = (
    "X-Request-Id",
    "Retry-After",
    "X-Punica-Ignored-Fields",
    *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
)

_REFUSED = 400


class Cors(CORSMiddleware):
    """An ASGI middleware outside all others, so that refusals can be read too. Preflights need no key."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        """All request headers are allowed: Authorization, and whatever browser clients add."""
        super().__init__(app, allow_origins=origins, allow_methods=METHODS, allow_headers=["*"], expose_headers=EXPOSED)

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code != _REFUSED:
            return response
        what = bytes(response.body).decode()
        origin = request_headers["origin"][:200]
        message = f"a page of {origin!r} may not send this request ({what}); add its origin to `frontend.cors_origins`"
        return refusal_of(_REFUSED, message, {"Vary": response.headers["Vary"]})
