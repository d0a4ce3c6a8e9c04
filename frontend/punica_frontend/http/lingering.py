"""A connection's transport that does not lose its last answer: it closes once the client has sent what it is sending.

The kernel resets a connection that is closed with bytes of the client unread, and the client may then lose an answer
that it has not read yet: a refusal that came before the whole body did (RFC 9112, section 9.6).
"""

from collections.abc import Callable
from typing import Any

from punica_frontend.http.corked import CorkedTransport


class LingeringTransport:
    """Stands in for a transport. While ``is_sending`` says so, ``close`` ends the answers and leaves reading on.

    Its protocol drops what comes then, and ends the connection: at its client's end, or after a time of its choice.
    """

    def __init__(
        self, transport: CorkedTransport, is_sending: Callable[[], bool], on_linger: Callable[[], None]
    ) -> None:
        self.inner = transport
        #: Looked up once: each token of a stream is written.
        self.write = transport.write
        self.is_lingering = False
        self._is_sending = is_sending
        self._on_linger = on_linger

    def close(self) -> None:
        if self.is_lingering or self.inner.is_closing() or not self._is_sending():
            self.inner.close()
            return
        self.is_lingering = True
        if self.inner.can_write_eof():  # TLS has no such end
            self.inner.write_eof()
        self.inner.resume_reading()
        self._on_linger()

    def is_closing(self) -> bool:
        return self.is_lingering or self.inner.is_closing()

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self.inner, name)
