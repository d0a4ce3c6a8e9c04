"""The server of a store in a process of its own, and the rate at which it sends."""

import http.client
import importlib.util
import os
import select
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, get_args

from punica_serve.adapters.folder import WEIGHTS_NAME
from punica_serve.bench.limited_store.child_program import child_program
from punica_serve.errors import ConfigError
from punica_serve.protocol import AdapterRef

Store = Literal["HTTP", "S3"]
STORES: tuple[Store, ...] = get_args(Store)
#: The folder, or bucket, of the adapters.
FILES = "files"

_MODULE = "punica_serve.bench.limited_store.store_server"
#: As many as a download has.
_NUM_CONNECTIONS = 6
_TIMEOUT_S = 60.0
#: Python starts within a second, and takes longer where many share a core.
_START_TIMEOUT_S = 60.0
_LINE_BYTES = 64
_PIECE_BYTES = 1 << 20
#: Time allowed to a load from the store: for its bytes, and for all else.
_ALLOWED_SHARE, _ALLOWED_S = 1.25, 0.05


@dataclass(frozen=True, slots=True)
class StoreLink:
    """A server of a folder, in which ``FILES`` has the adapters' folders. To S3 it is a bucket."""

    port: int

    def uri(self, store: Store, ref: AdapterRef) -> str:
        """The URI of an adapter in the server's folder."""
        path = _path(ref)
        return f"http://127.0.0.1:{self.port}/{path}" if store == "HTTP" else f"s3://{path}"

    def options(self, store: Store) -> dict[str, Any]:
        """fsspec's. The server believes every key."""
        if store == "HTTP":
            return {}
        return {"key": "any", "secret": "any", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{self.port}"}}

    def measured_rate(self, ref: AdapterRef) -> float:
        """Bytes per second of an adapter's weights that are read over several connections, and left unused."""
        path, num_bytes = f"/{_path(ref)}/{WEIGHTS_NAME}", ref.num_bytes
        share = -(-num_bytes // _NUM_CONNECTIONS)
        started_s = time.perf_counter()
        with ThreadPoolExecutor(_NUM_CONNECTIONS) as threads:
            starts = range(0, num_bytes, share)
            list(threads.map(lambda start: self._read(path, start, min(start + share, num_bytes)), starts))
        return num_bytes / (time.perf_counter() - started_s)

    def _read(self, path: str, start: int, end: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Range": f"bytes={start}-{end - 1}"})
            response, piece = connection.getresponse(), bytearray(_PIECE_BYTES)
            while response.readinto(piece):
                pass
        finally:
            connection.close()


@contextmanager
def store_server(folder: Path, bytes_per_s: float) -> Iterator[StoreLink]:
    """Serves this folder's files. Raises ConfigError if the server does not start."""
    with child_program(_MODULE, [str(folder), str(bytes_per_s)]) as server:
        assert server.stdout is not None
        yield StoreLink(_port_of(server.stdout))


def is_spoken(store: Store) -> bool:
    """Whether the packages for its protocol are installed."""
    return store == "HTTP" or importlib.util.find_spec("s3fs") is not None


def allowed_s(num_bytes: int, rate: float) -> float:
    """The goal for a load from a store, whose rate is in bytes per second."""
    return _ALLOWED_SHARE * num_bytes / rate + _ALLOWED_S


def _path(ref: AdapterRef) -> str:
    """The path of an adapter's folder on the server. Its URI is the folder on this machine."""
    return f"{FILES}/{Path(ref.uri).name}"


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
