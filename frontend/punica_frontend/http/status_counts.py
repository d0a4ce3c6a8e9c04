"""Counts answers by route, method and class of status, as vLLM's server does."""

from collections import Counter
from collections.abc import Awaitable, Iterable

from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from punica_frontend.metrics.metrics import AnswerKind

#: The handler of paths without a route.
NO_ROUTE = "none"
#: Clients may send any word as a method; others than these are counted together.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OTHER_METHOD = "other"

#: Statuses of the first messages that have none: a websocket was opened, or closed before that, which servers answer
#: with 403.
_STATUSES = {"websocket.accept": 101, "websocket.close": 403}


class RouteTemplates:
    """The paths of all routes. Finds a request's even if it was refused before its route was looked up."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, Route | WebSocketRoute)]
        self._plain = frozenset(route.path for route in known if not route.param_convertors)
        self._with_parameters = [route for route in known if route.param_convertors]

    def of(self, scope: Scope) -> str:
        """Returns the path of the request's route, with the names of its parameters; NO_ROUTE without a route."""
        path = scope["path"].removesuffix("/") or "/"
        if path in self._plain:
            return path
        matched = NO_ROUTE
        method = "GET" if scope.get("method") == "HEAD" else scope.get("method")
        scope = {**scope, "path": path, "method": method}
        for route in self._with_parameters:
            match, _ = route.matches(scope)
            if match is Match.FULL:
                return route.path_format
            if match is Match.PARTIAL and matched is NO_ROUTE:
                matched = route.path_format
        return matched


class StatusCounts:
    """An ASGI middleware outside all others. A request that gets no answer, since its client left, is not counted."""

    def __init__(self, app: ASGIApp, templates: RouteTemplates, num_answers: Counter[AnswerKind]) -> None:
        self._app = app
        self._templates = templates
        self._num_answers = num_answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        has_begun = False

        def send_counted(message: Message) -> Awaitable[None]:
            # It is no coroutine, so that it adds next to nothing to the messages of a stream.
            nonlocal has_begun
            if not has_begun:
                has_begun = True
                self._count(scope, message)
            return send(message)

        await self._app(scope, receive, send_counted)

    def _count(self, scope: Scope, first: Message) -> None:
        """Counts an answer by its first message."""
        status = first.get("status") or _STATUSES[first["type"]]
        method = scope.get("method", "GET")
        method = method if method in _METHODS else _OTHER_METHOD
        self._num_answers[AnswerKind(self._templates.of(scope), method, f"{status // 100}xx")] += 1
