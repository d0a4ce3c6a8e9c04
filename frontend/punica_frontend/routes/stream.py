"""WS /v1/generate/stream: many requests multiplexed on one socket."""

from fastapi import APIRouter, WebSocket

from punica_frontend.generation import Generator
from punica_frontend.socket import GenerateSocket


def stream_router(generator: Generator) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/generate/stream")
    async def stream(websocket: WebSocket) -> None:
        await websocket.accept()
        await GenerateSocket(websocket, generator).run()

    return router
