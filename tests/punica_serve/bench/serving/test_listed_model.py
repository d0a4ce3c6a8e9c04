import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest

from punica_serve.bench.serving.listed_model import base_name
from punica_serve.errors import ClusterUnavailable, RequestFailed

#: Serves answers by path, and returns the server's URL.
Serve = Callable[[dict[str, tuple[int, bytes]]], str]

LIST = json.dumps({"data": [{"id": "base"}, {"id": "adapter"}]}).encode()


@pytest.fixture
def serve() -> Iterator[Serve]:
    answers: dict[str, tuple[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.get(self.path, (404, b"nothing is here"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield lambda given: answers.update(given) or f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_first_model_is_the_base_model_also_below_a_path(serve: Serve) -> None:
    url = serve({"/v1/models": (200, LIST), "/llm/v1/models": (200, LIST)})
    assert base_name(url, None) == base_name(f"{url}/llm/", "key") == "base"


def test_a_path_with_a_second_v1_is_told_by_the_url_without_it(serve: Serve) -> None:
    url = serve({"/v1/models": (200, LIST)})
    for given in (f"{url}/v1", f"{url}/v1/"):
        with pytest.raises(RequestFailed) as raised:
            base_name(given, None)
        wrong = f"{url}/v1/v1/models answered 404: `--url` is what comes before /v1; give {url}"
        assert raised.value.message == wrong


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("http://v1.internal:8000", "check its path"),
        ("http://h/v1beta", "check its path"),
        ("http://h/llm/v1/models", "give http://h/llm"),
        ("http://h/v1/v1", "give http://h"),
    ],
)
def test_a_v1_counts_as_a_whole_part_of_the_path(monkeypatch: pytest.MonkeyPatch, given: str, advice: str) -> None:
    monkeypatch.setattr(httpx, "get", lambda *_, **__: httpx.Response(404))
    with pytest.raises(RequestFailed) as raised:
        base_name(given, None)
    assert raised.value.message.endswith(f"; {advice}")


@pytest.mark.parametrize("path", ["/llm", "/v1/models", "/v1beta"])
def test_another_wrong_path_is_told_too(serve: Serve, path: str) -> None:
    url = serve({"/v1/models": (200, LIST)})
    with pytest.raises(RequestFailed, match=f"{url}{path}/v1/models answered 404: `--url` is what comes before /v1; "):
        base_name(f"{url}{path}", None)


def test_a_refusal_is_told_in_the_servers_words(serve: Serve) -> None:
    url = serve({"/v1/models": (403, b'{"error": {"message": "not for you"}}')})
    with pytest.raises(RequestFailed, match=r"^not for you$"):
        base_name(url, None)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"data": []}', b'{"data": [5]}', b'{"data": null}'])
def test_a_server_that_lists_no_models_is_named(serve: Serve, body: bytes) -> None:
    url = serve({"/v1/models": (200, body)})
    with pytest.raises(ClusterUnavailable, match=f"{url}/v1/models does not list models as OpenAI's API does; set"):
        base_name(url, None)
