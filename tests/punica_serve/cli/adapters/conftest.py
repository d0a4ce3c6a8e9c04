"""A small HTTP server in place of the frontend."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from stub_frontend import StubFrontend


@pytest.fixture
def frontend() -> Iterator[StubFrontend]:
    frontend = StubFrontend()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            frontend.requests.append(f"{self.command} {self.path}")
            frontend.headers.append({name.lower(): value for name, value in self.headers.items()})
            frontend.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            status, body = frontend.answers.pop(0)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Not to stderr, which the tests read."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        frontend.url = f"http://127.0.0.1:{server.server_port}"
        yield frontend
        server.shutdown()
        serving.join()
