"""A connection of uvicorn's over a transport that takes what the test lets it."""

import asyncio
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from punica_frontend.http.uvicorn_websocket import GuardedWebSocket


class FakeTransport:
    """A client that takes what it is told to take."""

    def __init__(self) -> None:
        self.written = b""
        self.is_reading = True
        self.is_closed = self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def get_extra_info(self, name: str) -> None:
        return None

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass


async def hold(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that holds what it gets."""
    await asyncio.Event().wait()


def uvicorn_parts() -> dict[str, Any]:
    """The arguments with which uvicorn creates a connection."""
    config = uvicorn.Config(hold, ws=GuardedWebSocket, ws_ping_interval=None, log_config=None, lifespan="off")
    config.load()
    return {"config": config, "server_state": ServerState(), "app_state": {}, "_loop": asyncio.get_running_loop()}
