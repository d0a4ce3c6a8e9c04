"""Route classes that count every request, even one refused before its handler is called."""

import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from punica_frontend.api.json_request import JsonRequest
from punica_frontend.metrics.metrics import Metrics
from punica_serve.errors import InvalidRequest

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
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
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def counted(request: Request) -> Response:
                try:
                    return await handle(JsonRequest(request.scope, request.receive))
                except (RequestValidationError, HTTPException) as error:
                    _drop_body(error)
                    on_refused()
                    if refusal and not _is_of_transport(error):
                        raise refusal(error) from None
                    raise

            return counted

    return CountedRoute


def _drop_body(error: Exception) -> None:
    """Clears the frames that raised the error. They hold it, and the parsed body, in a cycle that would stay until a
    garbage collection: tens of megabytes for a long body.
    """
    traceback.clear_frames(error.__traceback__)


def _is_of_transport(error: RequestValidationError | HTTPException) -> bool:
    """Whether the body was too long, too late or compressed. Status 400 is about its content."""
    return isinstance(error, HTTPException) and error.status_code != 400
