"""WS /v1/generate/stream: many requests multiplexed on one socket."""

from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from punica_frontend.figures import Figures
from punica_frontend.generation import Generator
from punica_frontend.socket import GenerateSocket


def stream_router(generator: Generator, figures: Figures, *, max_frame_bytes: int) -> APIRouter:
    return APIRouter(routes=[WebSocketRoute("/v1/generate/stream", _StreamRoute(generator, figures, max_frame_bytes))])


class _StreamRoute:
    """Each frame starts or cancels one request; a frame that is wrong gets an error frame, and the socket goes on.

    A frame beyond ``max_frame_bytes`` is wrong too; it is not read, so its error frame has no request_id. One beyond
    the server's own limit is not even received: it closes the socket with code 1009.

    An ASGI application of its own: what frameworks put round a handler costs memory for as long as the socket is open.
    """

    def __init__(self, generator: Generator, figures: Figures, max_frame_bytes: int) -> None:
        self._generator = generator
        self._figures = figures
        self._max_frame_bytes = max_frame_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # "websocket.connect"
        await send({"type": "websocket.accept"})
        self._figures.num_websockets += 1
        try:
            await GenerateSocket(receive, send, self._generator, max_frame_bytes=self._max_frame_bytes).run()
        finally:
            self._figures.num_websockets -= 1
