"""A websocket's transport: joins what is written in one turn of the event loop, and reads when both sides want it."""

import asyncio
from typing import Any


class CorkedTransport:
    """Stands in for a transport: what is written leaves together, and in order, when the turn of the loop ends.

    A token of each of a socket's requests comes in one turn: so they cost one call into the kernel, not one each.
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
        """What was written before still leaves."""
        self.uncork()
        self._transport.close()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._update_reading()

    def resume_reading(self) -> None:
        """Reads on unless it is held as well."""
        self._is_paused = False
        self._update_reading()

    def hold_reading(self, is_held: bool) -> None:
        """Holds it, whoever may pause or resume meanwhile, or lets it go."""
        self._is_held = is_held
        self._update_reading()

    def _update_reading(self) -> None:
        is_reading = not (self._is_paused or self._is_held)
        if is_reading != self._is_reading and not self._transport.is_closing():
            self._is_reading = is_reading
            (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)
