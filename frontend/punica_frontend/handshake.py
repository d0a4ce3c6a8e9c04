"""The opening handshake of a websocket. What can't be one is refused as any other request is, in JSON."""

import http

from websockets.http11 import Response
from websockets.server import ServerProtocol

from punica_frontend.errors import refusal_of

_OURS = "the frontend is ending, or its log says more"


class Handshake(ServerProtocol):
    """A server's side of a websocket. Does no input or output."""

    @property
    def is_unreadable(self) -> bool:
        """The head was none to its parser, which is done with the connection."""
        return self.handshake_exc is not None and not self.accept_called

    def refusal(self) -> bytes:
        """All that is sent to an unreadable head. The parser answers some of them, and gives up on others."""
        return b"".join(self.data_to_send()) or self.reject(http.HTTPStatus.BAD_REQUEST, "").serialize()

    def reject(self, status: int, text: str) -> Response:
        """The library's own words, ``text``, speak of this program's inside."""
        phrase = http.HTTPStatus(status).phrase.lower()
        answer = refusal_of(status, f"no websocket was opened ({phrase}): {self._reason()}")
        response = super().reject(status, bytes(answer.body).decode())
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = answer.headers["Content-Type"]
        return response

    def _reason(self) -> str:
        """What the library found wrong: the outermost error says where, the innermost what."""
        reasons, error = [], self.handshake_exc
        while error:
            reasons.append(str(error))
            error = error.__cause__ if isinstance(error.__cause__, Exception) else None
        return "; ".join(reasons) or _OURS
