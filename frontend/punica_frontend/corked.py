"""A transport that joins what is written in one turn of the event loop into one system call."""

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

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)
