"""Stands before all routes: nothing passes without a caller, except to what is public."""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.frames import CloseCode

from punica_frontend.caller import Caller
from punica_frontend.errors import answer_of
from punica_frontend.tenancy.door import MAY_NOT_STAY, Door
from punica_serve.errors import PunicaError

#: Nothing of these tells anything, or they ask for a key themselves.
PUBLIC_PATHS = frozenset({"/health", "/ready", "/v1/login", "/v1/logout"})
#: A browser's way to the dashboard; POST of the same path generates.
PUBLIC_GETS = frozenset({"/"})


class Gate:
    """An ASGI middleware. It refuses before a byte of the body is read, and a websocket before it is accepted.

    A route that is not named in ``public_paths`` is closed: forgetting one can't open it. Of
    ``PUBLIC_GETS`` GET alone is open.
    """

    def __init__(self, app: ASGIApp, door: Door, public_paths: frozenset[str] = PUBLIC_PATHS) -> None:
        self._app = app
        self._door = door
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._door.admit(HTTPConnection(scope))
        except PunicaError as error:
            await answer_of(error)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        if scope["type"] == "websocket":
            receive = self._while_valid(caller, receive, send)
        await self._app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        path = scope["path"]
        return path in self._public_paths or (path in PUBLIC_GETS and scope.get("method") == "GET")

    def _while_valid(self, caller: Caller, receive: Receive, send: Send) -> Receive:
        """A websocket outlives many a key: each of its frames is for callers who would still be let in."""

        async def receive_checked() -> Message:
            message = await receive()
            if message["type"] != "websocket.receive" or self._door.may_stay(caller):
                return message
            code, reason = CloseCode.POLICY_VIOLATION, MAY_NOT_STAY
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return {"type": "websocket.disconnect", "code": code, "reason": reason}

        return receive_checked
