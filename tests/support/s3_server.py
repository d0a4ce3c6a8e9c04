"""An S3 server as a process of its own: moto's, which speaks the protocol and keeps objects in memory."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

BUCKET = "adapters"


@dataclass
class S3Server:
    process: "subprocess.Popen[str]"
    port: int

    @property
    def options(self) -> dict[str, Any]:
        """fsspec's, to reach it."""
        return self.options_of(self.port)

    @staticmethod
    def options_of(port: int) -> dict[str, Any]:
        return {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{port}"}}

    def filesystem(self) -> Any:
        """One of its own, for looking at what is there."""
        s3fs = pytest.importorskip("s3fs", reason="needs the extra s3")
        return s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, **self.options)


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Runs one on a free port, with an empty bucket. Skips the test where it is not installed."""
    pytest.importorskip("moto", reason="needs moto[server], of the extra dev")
    pytest.importorskip("s3fs", reason="needs the extra s3")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    # It tells of each request, and would wait once nobody takes that.
    listening = threading.Thread(target=process.stderr.read, name="log of the S3 server")
    try:
        server = S3Server(process, _port_of(process))
        listening.start()
        server.filesystem().call_s3("create_bucket", Bucket=BUCKET)
        yield server
    finally:
        process.kill()
        process.wait()
        if listening.ident is not None:
            listening.join()
        process.stderr.close()


def _port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"Running on http://127\.0\.0\.1:(\d+)", line):
            return int(found[1])
    raise RuntimeError("the S3 server ended before it listened")
