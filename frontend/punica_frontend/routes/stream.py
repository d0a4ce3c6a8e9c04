"""WS /v1/generate/stream: many requests on one socket; and the schema of its frames."""

from fastapi import APIRouter
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send

from punica_frontend.api.caller import caller_of
from punica_frontend.api.schema_file import add_schema_route
from punica_frontend.generation.generator import Generator
from punica_frontend.http.body_pieces import piece_writer
from punica_frontend.websocket.openai_frames import Shapes
from punica_frontend.websocket.stream_schema import stream_schema
from punica_frontend.websocket.websocket_session import WebSocketSession


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
        description="JSON Schema of the frames of `WS /v1/generate/stream`: clients send `ClientFrame`,"
        " the server sends `ServerFrame`.",
    )
    return router


class _StreamRoute:
    """The websocket's route. An invalid frame gets an error frame, and the socket stays open.

    A frame over ``max_frame_bytes`` is not parsed, so its error frame has no request_id. One over the server's own
    limit is not received: it closes the socket with code 1009.

    This is a plain ASGI application, because a framework's wrappers would use memory for as long as the socket is open.
    """

    def __init__(self, generator: Generator, shapes: Shapes, max_frame_bytes: int) -> None:
        self._generator = generator
        self._shapes = shapes
        self._max_frame_bytes = max_frame_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # "websocket.connect"
        await send({"type": "websocket.accept"})
        metrics, caller = self._generator.metrics, caller_of(HTTPConnection(scope))
        pieces = piece_writer(scope, send)
        socket = WebSocketSession(
            receive, pieces, caller, self._generator, self._shapes, max_frame_bytes=self._max_frame_bytes
        )
        metrics.num_websockets += 1
        try:
            await socket.run()
        finally:
            metrics.num_websockets -= 1
