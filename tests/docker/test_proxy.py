"""HAProxy with docker/haproxy's files, before a frontend that counts what it is asked."""

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from waits import until

HAPROXY = Path(__file__).parents[2] / "docker/haproxy"

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="needs haproxy")

#: How often each request arrived.
asked: Counter[str] = Counter()


class Refusing(BaseHTTPRequestHandler):
    """A frontend that is ready, and answers 503 to all else."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        asked[f"{self.command} {self.path}"] += 1
        self.send_response(200 if self.path == "/ready" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def frontend() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def proxy(frontend: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Its port. The files are those of the image, but for the addresses: its sockets are made here."""
    folder = tmp_path_factory.mktemp("haproxy")
    with socket.create_server(("127.0.0.1", 0)) as face, socket.create_server(("127.0.0.1", 0)) as status:
        common = (HAPROXY / "common.cfg").read_text().replace("bind :8404", f"bind fd@{status.fileno()}")
        common = common.replace(" resolvers containers init-addr none", "")
        common = common.replace("server-template frontend 1-8 frontend:8000", f"server frontend 127.0.0.1:{frontend}")
        (folder / "common.cfg").write_text(common)
        plain = (HAPROXY / "plain.cfg").read_text().replace("bind :8000", f"bind fd@{face.fileno()}")
        (folder / "face.cfg").write_text(plain)
        command = ["haproxy", "-db", "-f", str(folder / "common.cfg"), "-f", str(folder / "face.cfg")]
        inherited = (face.fileno(), status.fileno())
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=inherited) as process:
            try:
                asyncio.run(until(lambda: ask(status.getsockname()[1], "GET", "/up")[0] == 200))
                yield face.getsockname()[1]
            finally:
                process.kill()


def ask(port: int, method: str, path: str, host: str = "localhost:8000") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:9000", "[::1]", "[::1]:8000"])
def test_who_calls_this_machine_by_its_own_name_is_let_in(proxy: int, host: str) -> None:
    assert ask(proxy, "GET", "/ready", host)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "localhost,x.evil.example:8000", ""]
)
def test_a_page_of_a_name_that_was_bound_to_this_machine_is_not(proxy: int, host: str) -> None:
    asked.clear()
    status, body = ask(proxy, "POST", "/v1/keys", host)
    assert status == 403
    assert json.loads(body)["error"]["code"] == "permission_denied"
    assert "POST /v1/keys" not in asked


@pytest.mark.parametrize(
    "request_line", ["GET /v1/models", "POST /v1/generate", "POST /v1/completions", "POST /v1/chat/completions"]
)
def test_the_next_frontend_is_asked_where_one_refuses(proxy: int, request_line: str) -> None:
    assert ask(proxy, *request_line.split())[0] == 503
    assert asked[request_line] > 1


def test_the_next_one_is_asked_also_if_the_body_comes_behind_the_headers(proxy: int) -> None:
    for _ in range(20):  # that a proxy which does not wait for it sends it on in time is a matter of luck
        asked.clear()
        with closing(http.client.HTTPConnection("127.0.0.1", proxy, timeout=60)) as connection:
            connection.putrequest("POST", "/v1/generate", skip_host=True)
            for name, value in {"Host": "localhost", "Content-Length": "8"}.items():
                connection.putheader(name, value)
            connection.endheaders()
            connection.send(b"a prompt")
            assert connection.getresponse().status == 503
        assert asked["POST /v1/generate"] > 1


@pytest.mark.parametrize("request_line", ["POST /v1/keys", "PUT /v1/tenants/acme", "POST /v1/adapters"])
def test_a_change_is_asked_for_once(proxy: int, request_line: str) -> None:
    """Whether a 503 of the registry's came before or after the commit is not known."""
    asked.clear()
    assert ask(proxy, *request_line.split())[0] == 503
    assert asked[request_line] == 1
