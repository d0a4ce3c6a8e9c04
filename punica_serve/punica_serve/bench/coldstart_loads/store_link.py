"""The server of the store row in a process of its own, and the rate at which it sends."""

import http.client
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from punica_serve.errors import ConfigError
from punica_serve.process.ctrl_c import ctrl_c_blocked
from punica_serve.process.ending import end_program

Store = Literal["HTTP", "S3"]
STORES: tuple[Store, ...] = get_args(Store)
#: The folder, or bucket, of the adapters.
FILES = "files"

_MODULE = "punica_serve.bench.coldstart_loads.store_server"
#: As many as a download has.
_NUM_CONNECTIONS = 6
_TIMEOUT_S = 60.0
#: Python starts within a second, and takes longer where many share a core.
_START_TIMEOUT_S = 60.0
_LINE_BYTES = 64
_END_TIMEOUT_S = 5.0
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreLink:
    """A server of a folder's files. Its folders are S3's buckets too."""

    port: int

    def uri(self, store: Store, path: str) -> str:
        """The URI of a file or folder in the server's folder."""
        return f"http://127.0.0.1:{self.port}/{path}" if store == "HTTP" else f"s3://{path}"

    def options(self, store: Store) -> dict[str, Any]:
        """fsspec's. The server believes every key."""
        if store == "HTTP":
            return {}
        return {"key": "any", "secret": "any", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{self.port}"}}


@contextmanager
def store_server(folder: Path, bytes_per_s: float) -> Iterator[StoreLink]:
    """Serves this folder's files. Raises ConfigError if the server does not start."""
    command = [sys.executable, "-P", "-m", _MODULE, str(folder), str(bytes_per_s)]
    with ctrl_c_blocked():
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    try:
        yield StoreLink(_port_of(server.stdout))
    finally:
        server.stdin.close()
        end_program(server, _END_TIMEOUT_S)
        server.stdout.close()


def _port_of(output: IO[bytes]) -> int:
    """The server's first line, which it writes at once. Raises ConfigError if it does not come in time."""
    line, deadline_s = b"", time.monotonic() + _START_TIMEOUT_S
    while not line.endswith(b"\n"):
        wait_s = max(0.0, deadline_s - time.monotonic())
        if not select.select([output], [], [], wait_s)[0]:
            raise ConfigError(f"the benchmark's web server did not start within {_START_TIMEOUT_S:g} s")
        if not (piece := os.read(output.fileno(), _LINE_BYTES)):
            raise ConfigError("the benchmark's web server ended before it listened; its error is above")
        line += piece
    return int(line)


def measured_rate(port: int, path: str, num_bytes: int) -> float:
    """Bytes per second of a file that is read over several connections, and left unused."""
    share = -(-num_bytes // _NUM_CONNECTIONS)
    started_s = time.perf_counter()
    with ThreadPoolExecutor(_NUM_CONNECTIONS) as threads:
        starts = range(0, num_bytes, share)
        list(threads.map(lambda start: _read(port, path, start, min(start + share, num_bytes)), starts))
    return num_bytes / (time.perf_counter() - started_s)


def _read(port: int, path: str, start: int, end: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})
        response, piece = connection.getresponse(), bytearray(_PIECE_BYTES)
        while response.readinto(piece):
            pass
    finally:
        connection.close()
