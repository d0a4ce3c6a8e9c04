"""The server of the store row in a process of its own, and the rate at which it sends."""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from punica_serve.errors import ConfigError
from punica_serve.process.ending import end_program

_MODULE = "punica_serve.bench.coldstart_loads.store_server"
#: As many as a download has.
_NUM_CONNECTIONS = 6
_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 5.0
_PIECE_BYTES = 1 << 20


@contextmanager
def store_server(folder: Path, bytes_per_s: float) -> Iterator[int]:
    """The port of a server of this folder's files. Raises ConfigError if it does not start."""
    command = [sys.executable, "-m", _MODULE, str(folder), str(bytes_per_s)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    try:
        port = server.stdout.readline()
        if not port:
            raise ConfigError("the benchmark's web server did not start")
        yield int(port)
    finally:
        server.stdin.close()
        end_program(server, _END_TIMEOUT_S)
        server.stdout.close()


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
