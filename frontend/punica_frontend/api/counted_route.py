"""Route classes that count every request, even one refused before its handler is called."""

from collections.abc import Callable
from inspect import iscoroutinefunction, signature
from typing import Any, get_type_hints

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from punica_frontend.api.json_request import JsonRequest
from punica_frontend.metrics.metrics import Metrics
from punica_serve.errors import InvalidRequest

#: Makes the error for an invalid or unreadable body.
Refusal = Callable[[RequestValidationError | HTTPException], Exception]


def counted_route(metrics: Metrics, refusal: Refusal | None = None) -> type[APIRoute]:
    """Returns a ``route_class`` for a router. Handlers count what they refuse themselves.

    Without ``refusal``, invalid bodies are answered by the default handlers.
    """
    return _route(lambda: metrics.refused(InvalidRequest.code), refusal)


def refusing_route(refusal: Refusal) -> type[APIRoute]:
    """The same for routes that generate nothing, whose requests are not counted."""
    return _route(lambda: None, refusal)


def _route(on_refused: Callable[[], None], refusal: Refusal | None) -> type[APIRoute]:
    class CountedRoute(APIRoute):
        """Calls an endpoint that takes a ``body`` and the ``request``, and returns a response.

        FastAPI only describes such a route: what it does for a request takes longer than many an endpoint. Routes
        without a ``body`` are FastAPI's.
        """

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            """Raises TypeError for an endpoint whose ``body`` comes with anything that only FastAPI would resolve."""
            super().__init__(path, endpoint, **options)
            self._body = get_type_hints(endpoint).get("body")
            if self._body is not None:
                _check_called_alone(self)

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            if self._body is None or scope["method"] not in (self.methods or ()):
                await super().handle(scope, receive, send)
                return
            request = JsonRequest(scope, receive)
            try:
                response = await self.endpoint(await request.checked(self._body), request)
            except (RequestValidationError, HTTPException) as error:
                on_refused()
                if refusal and not _is_of_transport(error):
                    raise refusal(error) from None
                raise
            await response(scope, receive, send)

    return CountedRoute


def _check_called_alone(route: APIRoute) -> None:
    """A dependency that is never called, such as a check of the caller's rights, must not go unnoticed."""
    names = list(signature(route.endpoint).parameters)
    if route.dependant.dependencies or names != ["body", "request"] or not iscoroutinefunction(route.endpoint):
        message = "takes `body` and `request` alone, without dependencies, and is a coroutine function"
        raise TypeError(f"{route.path}: an endpoint of a counted route {message}")


def _is_of_transport(error: RequestValidationError | HTTPException) -> bool:
    """Whether the body was too long, too late or compressed. Status 400 is about its content."""
    return isinstance(error, HTTPException) and error.status_code != 400
