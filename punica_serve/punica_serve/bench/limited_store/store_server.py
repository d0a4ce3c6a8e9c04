"""A web server of one folder's files, with ranges, that sends at a limited rate in all. It ends with its input.

To clients of S3 the folders in it are buckets: for reading an object, that protocol is HTTP with two more headers.

python -m punica_serve.bench.limited_store.store_server FOLDER BYTES_PER_S     # prints its port
"""

import os
import re
import sys
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

_PIECE_BYTES = 256 << 10
#: A client that takes nothing for so long is gone.
_TIMEOUT_S = 30.0


class _Rate:
    """Deals out the rate to all connections, piece by piece."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def take(self, num_bytes: int) -> None:
        """Waits until the piece may be sent."""
        with self._lock:
            starts_s = max(time.monotonic(), self._free_s)
            self._free_s = starts_s + num_bytes / self._bytes_per_s
        time.sleep(max(0.0, starts_s - time.monotonic()))


class StoreServer(ThreadingHTTPServer):
    """On a free port of this machine."""

    daemon_threads = True

    def __init__(self, folder: Path, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder.resolve()
        self.rate = _Rate(bytes_per_s)


class _Handler(BaseHTTPRequestHandler):
    server: StoreServer
    protocol_version = "HTTP/1.1"
    timeout = _TIMEOUT_S

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        path = (self.server.folder / unquote(self.path.partition("?")[0]).lstrip("/")).resolve()
        if not (path.is_relative_to(self.server.folder) and path.is_file()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            size = found.st_size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(wanted[1]), min(int(wanted[2]) + 1, size)) if wanted else (0, size)
            self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
            self.send_header("Content-Length", str(max(0, end - start)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{size:x}"')
            self.send_header("Last-Modified", self.date_time_string(found.st_mtime))
            self.end_headers()
            if has_body:
                self._send(file, start, end)

    def _send(self, file: BinaryIO, start: int, end: int) -> None:
        with suppress(OSError):  # the client has left
            for first in range(start, end, _PIECE_BYTES):
                num_bytes = min(_PIECE_BYTES, end - first)
                self.server.rate.take(num_bytes)
                self.connection.sendfile(file, first, num_bytes)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def _main() -> None:
    folder, bytes_per_s = sys.argv[1:]
    server = StoreServer(Path(folder), float(bytes_per_s))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()  # ends with the parent


if __name__ == "__main__":
    _main()
