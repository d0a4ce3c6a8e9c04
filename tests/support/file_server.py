"""An HTTP server of files that a test controls: real sockets, redirects, and answers that wait."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from punica_serve.protocol import AdapterRef


@dataclass
class FileServer:
    """Serves ``files`` by path, and counts the GETs of each."""

    port: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    redirects: dict[str, str] = field(default_factory=dict)
    #: Status codes of paths that are refused, or fail.
    statuses: dict[str, int] = field(default_factory=dict)
    headers_of_404: dict[str, str] = field(default_factory=dict)
    num_gets: Counter[str] = field(default_factory=Counter)
    #: It sends all of a file to whoever asks for a range.
    ignores_ranges: bool = False
    #: By path: seconds between two bytes of a file.
    pauses_s: dict[str, float] = field(default_factory=dict)
    #: By path: ranges that begin at this byte or later wait until ``may_go_on`` is set.
    held_from: dict[str, int] = field(default_factory=dict)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    #: By path: connections of such ranges are cut half way.
    cut_from: dict[str, int] = field(default_factory=dict)
    #: Connections that are still cut.
    num_cuts: int = 1 << 30
    was_asked: threading.Event = field(default_factory=threading.Event)
    #: Answers wait until it is set.
    may_answer: threading.Event = field(default_factory=threading.Event)
    #: Headers of the newest request of each path, in lower case.
    headers_of: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add_adapter(self, ref: AdapterRef, path: str) -> str:
        """Serves the files of a local adapter, and returns the URL of their folder."""
        for file in Path(ref.uri).iterdir():
            self.files[f"{path}/{file.name}"] = file.read_bytes()
        return f"{self.url}{path}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, state: FileServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.state = state


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        state = self.server.state
        state.num_gets[self._file] += 1
        state.was_asked.set()
        state.may_answer.wait(60)
        self._answer(has_body=True)

    @property
    def _file(self) -> str:
        return self.path.partition("?")[0]

    def _answer(self, has_body: bool) -> None:
        self.server.state.headers_of[self._file] = {name.lower(): value for name, value in self.headers.items()}
        content = self._begin()
        if has_body and self._begins_from(self.server.state.held_from):
            self.server.state.may_go_on.wait(60)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        pause_s = self.server.state.pauses_s.get(self._file)
        if has_body and self.server.state.num_cuts and self._begins_from(self.server.state.cut_from):
            self.server.state.num_cuts -= 1
            self.close_connection = True
            with suppress(OSError):  # the client has left
                self.wfile.write(content[: len(content) // 2])
        elif not has_body or pause_s is None:
            self.wfile.write(content if has_body else b"")
        else:
            with suppress(OSError):  # the client has left
                for byte in content:
                    self.wfile.write(bytes((byte,)))
                    time.sleep(pause_s)

    def _begin(self) -> bytes:
        """Sends the status and what headers belong to it; the body is still to be sent."""
        state = self.server.state
        if target := state.redirects.get(self._file):
            self.send_response(302)
            self.send_header("Location", target)
        elif status := state.statuses.get(self._file):
            self.send_response(status)
        elif self._file not in state.files:
            self.send_response(404)
            for name, value in state.headers_of_404.items():
                self.send_header(name, value)
        elif (wanted := self._range()) and not state.ignores_ranges:
            self.send_response(206)
            return state.files[self._file][int(wanted[1]) : int(wanted[2]) + 1]
        else:
            self.send_response(200)
            return state.files[self._file]
        return b""

    def _begins_from(self, starts: dict[str, int]) -> bool:
        wanted = self._range()
        return wanted is not None and self._file in starts and int(wanted[1]) >= starts[self._file]

    def _range(self) -> re.Match[str] | None:
        return re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def serve_files() -> Iterator[FileServer]:
    """Runs one on a free port of this machine."""
    state = FileServer()
    state.may_answer.set()
    server = _Server(state)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        state.may_answer.set()
        state.may_go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
