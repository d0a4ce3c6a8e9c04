"""What h11 lets through of a request's head, and a frontend does not."""

from typing import Any

import h11

#: Of a request line and its headers.
MAX_HEADER_BYTES = 64 << 10


class StrictConnection(h11.Connection):
    """A server's side of a connection. Raises RemoteProtocolError for more heads than h11 itself does.

    h11 bounds a head that has not come to its end; one that comes in one read may be as long as the read. And it takes
    the length of a body twice, where whoever stands before us may have believed the other one.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER_BYTES)

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            _check(event)
        return event


def _check(request: h11.Request) -> None:
    names = {name for name, _ in request.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("both Content-Length and Transfer-Encoding")
    num_bytes = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
    if num_bytes > MAX_HEADER_BYTES:
        raise h11.RemoteProtocolError("the head is too long")
