"""Refuses request heads that h11 accepts and a frontend must not, and normalizes targets."""

import re
from typing import Any

import h11

#: A request line and its headers.
MAX_HEADER_BYTES = 64 << 10

#: h11 accepts any pair of digits; messages of other versions may have another meaning.
_VERSIONS = (b"1.0", b"1.1")
_VERSION_NOT_SUPPORTED = 505

#: In a head, as h11 writes it: the body comes in chunks (RFC 9112, section 7.1).
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"

#: A target in absolute form (RFC 9112, section 3.2.2). User information in it is an error (RFC 9110, section 4.2.4).
_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#@]+)(?P<rest>([/?].*)?)", re.IGNORECASE)


class StrictConnection(h11.Connection):
    """The server's side of a connection. Raises RemoteProtocolError for more heads than h11 does.

    h11 bounds only heads that arrive in pieces; one that arrives in a single read may be as long as the read. It also
    accepts two different body lengths, of which a proxy in front may have believed the other.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)
        #: Whether the last head was refused only for its HTTP version.
        self.is_unknown_version = False
        #: A body is being sent in chunks.
        self._sends_chunks = False

    def piece(self, data: bytes) -> bytes:
        """The bytes of a piece of a body. Chunks are framed here: h11 takes as long for one as all before it."""
        if self._sends_chunks:
            return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
        return super().send(h11.Data(data=data)) or b""

    def send(self, event: Any) -> Any:  # h11 has an overload for each result
        """The bytes of an event."""
        if type(event) is h11.Data:
            return self.piece(event.data)
        sent: bytes | None = super().send(event)
        self._sends_chunks = isinstance(event, h11.Response) and _CHUNKED in (sent or b"").lower()
        return sent

    def next_event(self) -> Any:
        """Makes a request's target a path or `*`, and moves the authority of an absolute target to `Host`."""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        if event.http_version not in _VERSIONS:
            self.is_unknown_version = True
            raise h11.RemoteProtocolError("an unknown HTTP version", error_status_hint=_VERSION_NOT_SUPPORTED)
        _check(event)
        return _in_origin_form(event)


def _check(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
    in_line = len(request.method) + len(request.target)
    if in_line + sum(len(name) + len(value) for name, value in request.headers) > MAX_HEADER_BYTES:
        raise h11.RemoteProtocolError("the head is too long")


def _in_origin_form(request: h11.Request) -> h11.Request:
    """A target that names its host overrides the `Host` header."""
    if request.target.startswith(b"/") or request.target == b"*":
        return request
    absolute = _ABSOLUTE.fullmatch(request.target)
    if absolute is None:
        raise h11.RemoteProtocolError("the target is neither a path nor an http URL")
    rest: bytes = absolute["rest"]
    others = [(name, value) for name, value in request.headers if name != b"host"]
    return h11.Request(
        method=request.method,
        target=rest if rest.startswith(b"/") else b"/" + rest,
        headers=[*others, (b"host", absolute["authority"])],
        http_version=request.http_version,
    )
