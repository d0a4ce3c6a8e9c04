"""The short way of a stream's pieces: past the middlewares, which look at the head of an answer only.

A piece of an HTTP answer is a part of its body, and a piece of a websocket is a message of text.

Our HTTP server offers it as an extension of the ASGI scope; other servers get ordinary messages.
"""

from typing import Protocol

from starlette.types import Scope, Send

#: The extension's name; its value is a PieceWriter.
EXTENSION = "punica.pieces"


class PieceWriter(Protocol):
    """Sends pieces of a body whose answer has begun, or of a websocket that was accepted."""

    @property
    def is_writable(self) -> bool:
        """Whether ``write`` may be called now: the client is there and takes what it is sent."""

    def write(self, piece: bytes) -> None:
        """Sends a piece at once."""

    async def send(self, piece: bytes) -> None:
        """Sends a piece; waits while the client takes nothing. A websocket raises OSError once the client has left."""


class _MessageWriter:
    """Sends pieces as ordinary messages, which may always wait."""

    is_writable = False

    def __init__(self, scope: Scope, send: Send) -> None:
        self._is_websocket = scope["type"] == "websocket"
        self._send = send

    def write(self, piece: bytes) -> None:
        raise AssertionError("an ordinary server's messages are awaited")

    async def send(self, piece: bytes) -> None:
        if self._is_websocket:
            await self._send({"type": "websocket.send", "text": piece.decode()})
        else:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def piece_writer(scope: Scope, send: Send) -> PieceWriter:
    """Returns the server's own, or one over ``send``. The end of a body goes through ``send`` in any case."""
    writer: PieceWriter | None = scope.get("extensions", {}).get(EXTENSION)
    return writer if writer is not None else _MessageWriter(scope, send)
