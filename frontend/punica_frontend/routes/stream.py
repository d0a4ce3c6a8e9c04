"""WS /v1/generate/stream: many requests multiplexed on one socket; and what its frames look like."""

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from punica_frontend.caller import caller_of
from punica_frontend.generation import Generator
from punica_frontend.schema_file import add_schema_route
from punica_frontend.socket import GenerateSocket
from punica_frontend.socket_shapes import Shapes
from punica_frontend.stream_schema import stream_schema


def stream_router(generator: Generator, shapes: Shapes, *, max_frame_bytes: int) -> APIRouter:
    router = APIRouter(
        routes=[WebSocketRoute("/v1/generate/stream", _StreamRoute(generator, shapes, max_frame_bytes))],
        tags=["native"],
    )
    add_schema_route(
        router,
        "/v1/generate/stream/schema",
        stream_schema,
        summary="The frames of the websocket",
        description="JSON Schema of the frames of `WS /v1/generate/stream`: `ClientFrame` is what it takes,"
        " `ServerFrame` what it sends.",
    )
    return router


class _StreamRoute:
    """Each frame starts or cancels one request; a frame that is wrong gets an error frame, and the socket goes on.

    A frame beyond ``max_frame_bytes`` is wrong too; it is not read, so its error frame has no request_id. One beyond
    the server's own limit is not even received: it closes the socket with code 1009.

    An ASGI application of its own: what frameworks put round a handler costs memory for as long as the socket is open.
    """

    def __init__(self, generator: Generator, shapes: Shapes, max_frame_bytes: int) -> None:
        self._generator = generator
        self._shapes = shapes
        self._max_frame_bytes = max_frame_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # "websocket.connect"
        await send({"type": "websocket.accept"})
        figures, caller = self._generator.figures, caller_of(HTTPConnection(scope))
        socket = GenerateSocket(
            receive, send, caller, self._generator, self._shapes, max_frame_bytes=self._max_frame_bytes
        )
        figures.num_websockets += 1
        try:
            await socket.run()
        finally:
            figures.num_websockets -= 1
