"""A connection's transport that joins writes, and reads only if both of its users want to read."""

import asyncio
from typing import Any

#: More than this leaves before the turn is over, so that the transport can tell its writer to pause.
MAX_CORKED_BYTES = 256 << 10


class CorkedTransport:
    """Wraps a transport: everything written in one turn of the event loop leaves in one call, in order.

    All requests of a websocket often get a token in the same turn, and an answer's head goes with its first event, as
    its end with its last. They then share one system call, which also wakes the client once.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.inner = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._num_bytes = 0
        self._is_reading = True
        self._is_paused = self._is_held = False

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self.uncork)
        self._pieces.append(data)
        self._num_bytes += len(data)
        if self._num_bytes > MAX_CORKED_BYTES:
            self.uncork()

    def write_now(self, data: bytes) -> None:
        """Sends this, and what was written before, without waiting for the end of the turn."""
        if self._pieces:
            self._pieces.append(data)
            self.uncork()
        else:
            self.inner.write(data)

    def uncork(self) -> None:
        pieces, self._pieces, self._num_bytes = self._pieces, [], 0
        if pieces and not self.inner.is_closing():
            self.inner.write(b"".join(pieces))

    def close(self) -> None:
        """Sends what was written before, then closes."""
        self.uncork()
        self.inner.close()

    def write_eof(self) -> None:
        """Sends what was written before, then ends this direction."""
        self.uncork()
        self.inner.write_eof()

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
        if is_reading != self._is_reading and not self.inner.is_closing():
            self._is_reading = is_reading
            (self.inner.resume_reading if is_reading else self.inner.pause_reading)()

    def __getattr__(self, name: str) -> Any:
        """Everything else is the wrapped transport's."""
        return getattr(self.inner, name)
