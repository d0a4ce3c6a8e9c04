"""A websocket's transport that joins writes, and reads only if both of its users want to read."""

import asyncio
from typing import Any


class CorkedTransport:
    """Wraps a transport: everything written in one turn of the event loop leaves in one call, in order.

    All requests of a socket often get a token in the same turn. They then share one system call.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._is_reading = True
        self._is_paused = self._is_held = False

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.uncork)
        self._pieces.append(data)

    def uncork(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._transport.write(b"".join(pieces))

    def close(self) -> None:
        """Sends what was written before, then closes."""
        self.uncork()
        self._transport.close()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Resumes reading unless it is held as well."""
        self._is_paused = False
        self._update_reading()

    def hold_reading(self, is_held: bool) -> None:
        """Holds reading independently of pause and resume, or releases it."""
        self._is_held = is_held
        self._update_reading()

    def _update_reading(self) -> None:
        is_reading = not (self._is_paused or self._is_held)
        if is_reading != self._is_reading and not self._transport.is_closing():
            self._is_reading = is_reading
            (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the wrapped transport's."""
        return getattr(self._transport, name)
