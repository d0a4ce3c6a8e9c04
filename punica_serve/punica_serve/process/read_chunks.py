"""Reads what another process writes to a pipe, as it comes, up to a deadline."""

import os
import select
import time
from collections.abc import Iterator

_CHUNK_BYTES = 1 << 16


def read_chunks(fd: int, deadline_s: float) -> Iterator[bytes]:
    """All that is written until the other end is closed. Raises TimeoutError at the deadline, a monotonic time."""
    while select.select([fd], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        chunk = os.read(fd, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk
    raise TimeoutError


def read_lines(fd: int, deadline_s: float) -> Iterator[bytes]:
    """The whole lines of the same, without their ends."""
    rest = b""
    for chunk in read_chunks(fd, deadline_s):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
