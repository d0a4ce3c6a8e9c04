"""A websocket's opening handshake. Invalid ones are refused in JSON, like any other request."""

import http

from websockets.http11 import Response
from websockets.server import ServerProtocol

from punica_frontend.api.errors import refusal_of

_OURS = "the frontend is shutting down or failed; its log says more"


class Handshake(ServerProtocol):
    """The server's side of a websocket. Does no input or output."""

    @property
    def is_unreadable(self) -> bool:
        """Whether the parser rejected the head. It then ignores the rest of the connection."""
        return self.handshake_exc is not None and not self.accept_called

    def refusal(self) -> bytes:
        """Returns the whole answer to an unreadable head.

        The parser answers some of them itself, and gives up on others.
        """
        return b"".join(self.data_to_send()) or self.reject(http.HTTPStatus.BAD_REQUEST, "").serialize()

    def reject(self, status: int, text: str) -> Response:
        """Replaces the library's text, which describes this program's inside."""
        phrase = http.HTTPStatus(status).phrase.lower()
        answer = refusal_of(status, f"no websocket was opened ({phrase}): {self._reason()}")
        response = super().reject(status, bytes(answer.body).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = answer.headers["Content-Type"]
        return response

    def _reason(self) -> str:
        """Returns what the library found wrong. The outermost error says where, the innermost what."""
        reasons, error = [], self.handshake_exc
        while error:
            reasons.append(str(error))
            error = error.__cause__ if isinstance(error.__cause__, Exception) else None
        return "; ".join(reasons) or _OURS
