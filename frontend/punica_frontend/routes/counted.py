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


def counted_route(
    figures: Figures, refusal: Callable[[RequestValidationError], Exception] | None = None
) -> type[APIRoute]:
    """For the ``route_class`` of a router. What a handler itself refuses is the handler's to count.

    ``refusal`` makes the error that a body with a wrong field is answered with; by default it is as everywhere.
    """
    return _route(lambda: figures.refused(InvalidRequest.code), refusal)


def refusing_route(refusal: Callable[[RequestValidationError], Exception]) -> type[APIRoute]:
    """The same for routes that generate nothing, whose requests are not counted."""
    return _route(lambda: None, refusal)


def _route(
    on_refused: Callable[[], None], refusal: Callable[[RequestValidationError], Exception] | None
) -> type[APIRoute]:
    class CountedRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def counted(request: Request) -> Response:
                try:
                    return await handle(request)
                except RequestValidationError as error:
                    on_refused()
                    if refusal:
                        raise refusal(error) from None
                    raise
                except HTTPException:
                    on_refused()
                    raise

            return counted

    return CountedRoute
