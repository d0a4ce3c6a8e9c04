"""WS /v1/generate/stream: many requests multiplexed on one socket."""

from fastapi import APIRouter, WebSocket

from punica_frontend.figures import Figures
from punica_frontend.generation import Generator
from punica_frontend.socket import GenerateSocket


def stream_router(generator: Generator, figures: Figures, *, max_frame_bytes: int) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/generate/stream")
    async def stream(websocket: WebSocket) -> None:
        """Each frame starts or cancels one request; a frame that is wrong gets an error frame, and the socket goes on.

        A frame beyond ``max_frame_bytes`` is wrong too; it is not read, so its error frame has no request_id. One
        beyond the server's own limit is not even received: it closes the socket with code 1009.
        """
        await websocket.accept()
        figures.num_websockets += 1
        try:
            await GenerateSocket(websocket, generator, max_frame_bytes=max_frame_bytes).run()
        finally:
            figures.num_websockets -= 1

    return router
