"""Errors of sources, over real servers: one that the client can mend is 400, a temporary one is 503 with a time."""

import socket
from collections.abc import Iterator

import httpx
import pytest

from file_server import FileServer, serve_files
from punica_serve.config.store_section import StoreConfig
from punica_serve.store.sources import Sources
from tiny_check import check_for_tiny


@pytest.fixture
def sources() -> Sources:
    return Sources(StoreConfig(), check_for_tiny)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serve_files() as server:
        yield server


async def register(api: httpx.AsyncClient, uri: str) -> httpx.Response:
    return await api.post("/v1/adapters", json={"name": "roman", "uri": uri})


@pytest.mark.parametrize(("status", "told"), [(404, 400), (401, 400), (403, 400), (429, 503), (500, 503), (503, 503)])
async def test_a_web_server(api: httpx.AsyncClient, server: FileServer, status: int, told: int) -> None:
    server.statuses = {"/a/adapter_config.json": status}
    answer = await register(api, f"{server.url}/a")
    assert answer.status_code == told, answer.text
    assert ("retry-after" in answer.headers) == (told == 503)
    assert answer.json()["error"]["param"] == ("uri" if told == 400 else None)


async def test_a_server_that_refuses_connections(api: httpx.AsyncClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    answer = await register(api, f"http://127.0.0.1:{port}/a")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "adapter_rejected", "uri")
    assert f"127.0.0.1:{port}" in error["message"] and "check its host and port" in error["message"]


async def test_a_folder_that_is_none(api: httpx.AsyncClient) -> None:
    answer = await register(api, "file:///etc/passwd")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "uri")
    assert "there is no such folder" in answer.json()["error"]["message"]
