"""The short way of a stream's pieces: past the middlewares, which look at the head of an answer only.

Our HTTP server offers it as an extension of the ASGI scope; other servers get ordinary messages.
"""

from collections.abc import Awaitable, Callable

from starlette.types import Scope, Send

#: The extension's name; its value is a PieceSender.
EXTENSION = "punica.pieces"

#: Sends a piece of a body whose answer has begun; waits while the client takes nothing.
PieceSender = Callable[[bytes], Awaitable[None]]


def piece_sender(scope: Scope, send: Send) -> PieceSender:
    """Returns the server's own, or one over ``send``. The end of a body goes through ``send`` in any case."""
    sender: PieceSender | None = scope.get("extensions", {}).get(EXTENSION)
    if sender is not None:
        return sender

    async def send_message(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    return send_message
