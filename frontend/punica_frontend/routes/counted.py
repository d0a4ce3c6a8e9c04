"""Routes whose every request is counted, also one that is refused before its handler is called."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from punica_frontend.metrics.figures import Figures
from punica_serve.errors import InvalidRequest

Handler = Callable[[Request], Coroutine[Any, Any, Response]]
#: Makes the error that a body with a wrong field, or one that can't be read, is answered with.
Refusal = Callable[[RequestValidationError | HTTPException], Exception]


def counted_route(figures: Figures, refusal: Refusal | None = None) -> type[APIRoute]:
    """For the ``route_class`` of a router. What a handler itself refuses is the handler's to count.

    Without ``refusal`` wrong bodies are answered as everywhere.
    """
    return _route(lambda: figures.refused(InvalidRequest.code), refusal)


def refusing_route(refusal: Refusal) -> type[APIRoute]:
    """The same for routes that generate nothing, whose requests are not counted."""
    return _route(lambda: None, refusal)


def _route(on_refused: Callable[[], None], refusal: Refusal | None) -> type[APIRoute]:
    class CountedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def counted(request: Request) -> Response:
                try:
                    return await handle(request)
                except (RequestValidationError, HTTPException) as error:
                    on_refused()
                    if refusal and not _is_of_transport(error):
                        raise refusal(error) from None
                    raise

            return counted

    return CountedRoute


def _is_of_transport(error: RequestValidationError | HTTPException) -> bool:
    """Whether it is too long, too late or compressed: not a matter of what is in it. 400 is what can't be read."""
    return isinstance(error, HTTPException) and error.status_code != 400
