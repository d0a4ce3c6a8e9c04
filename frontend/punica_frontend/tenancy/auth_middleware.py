"""Authentication before all routes: only public paths can be reached without a caller."""

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.frames import CloseCode

from punica_frontend.api.caller import Caller
from punica_frontend.api.errors import answer_of
from punica_frontend.tenancy.authenticator import NO_LONGER_VALID, Authenticator
from punica_serve.errors import PunicaError

#: These reveal nothing, or check a key themselves.
PUBLIC_PATHS = frozenset({"/health", "/ping", "/ready", "/v1/login", "/v1/logout"})
#: The browser's redirect to the dashboard. POST of the same path generates text.
PUBLIC_GETS = frozenset({"/"})


class AuthMiddleware:
    """An ASGI middleware. It refuses a request before reading its body, and a websocket before accepting it.

    Every route that is not in ``public_paths`` needs a key, so a new route can't be open by mistake. For
    ``PUBLIC_GETS`` only GET is open.
    """

    def __init__(self, app: ASGIApp, authenticator: Authenticator, public_paths: frozenset[str] = PUBLIC_PATHS) -> None:
        self._app = app
        self._authenticator = authenticator
        self._public_paths = public_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._authenticator.authenticate(HTTPConnection(scope))
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
        """Checks the caller again for each frame: a websocket may outlive its key."""

        async def receive_checked() -> Message:
            message = await receive()
            if message["type"] != "websocket.receive" or self._authenticator.is_still_valid(caller):
                return message
            code, reason = CloseCode.POLICY_VIOLATION, NO_LONGER_VALID
            await send({"type": "websocket.close", "code": code, "reason": reason})
            return {"type": "websocket.disconnect", "code": code, "reason": reason}

        return receive_checked
