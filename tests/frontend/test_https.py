"""The frontend's server with a certificate of its own, on real sockets."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from rich.console import Console
from websockets.asyncio.client import connect

from https_files import HttpsFiles, write_https_files
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http import uvicorn_server
from punica_frontend.http.http_server import http_server
from punica_frontend.http.startup_server import _refusing
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.cli.adapters.client import AdapterClient
from punica_serve.cli.up.readiness import until_ready
from punica_serve.errors import ClusterUnavailable
from punica_serve.links.dial import dial
from punica_serve.links.https_client import CA_FILE_ENV
from punica_serve.links.https_context import server_context
from punica_serve.registry.registry import Registry
from punica_serve.simulation.live.client import connected
from punica_serve.simulation.live.cluster_check import cluster_client, found_gpus
from waits import DEADLINE_S, until


@pytest.fixture
def files(tmp_path: Path) -> HttpsFiles:
    return write_https_files(tmp_path / "tls")


@pytest.fixture
def trusting(files: HttpsFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=files.ca)


@pytest.fixture
def auth_mode() -> str:
    return "keys"


@pytest.fixture
async def secret(registry: Registry) -> str:
    return (await registry.make_key("default", "user", "", None, by="the test"))[1]


@pytest.fixture
async def server(
    app: FastAPI, dependencies: AppDependencies, listener: socket.socket, files: HttpsFiles
) -> AsyncIterator[EmbeddedServer]:
    tls = server_context(files.config)
    server = http_server(app, dependencies.metrics.num_cut, max_body_bytes=1 << 20, max_connections=50, tls=tls)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def https(server: EmbeddedServer, address: str, trusting: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    url = f"https://{address}"
    async with httpx.AsyncClient(base_url=url, verify=trusting, timeout=DEADLINE_S, trust_env=False) as client:
        yield client


async def test_requests_streams_and_what_is_refused(https: httpx.AsyncClient, secret: str) -> None:
    key = {"authorization": f"Bearer {secret}"}
    assert (await https.post("/v1/generate", json={"prompt": "42"})).status_code == 401
    assert (await https.post("/v1/generate", json={"prompt": "42"}, headers=key)).json()["text"] == "42"
    streamed = await https.post("/v1/generate", json={"prompt": "42", "stream": True}, headers=key)
    assert streamed.text.endswith("data: [DONE]\n\n")
    body = b"4" * (2 << 20)  # refused while it is sent, and read on, so that the refusal is read
    assert (await https.post("/v1/generate", content=body, headers=key)).status_code == 413


async def test_websockets(https: httpx.AsyncClient, address: str, trusting: ssl.SSLContext, secret: str) -> None:
    key = {"authorization": f"Bearer {secret}"}
    url = f"wss://{address}/v1/generate/stream"
    async with connect(url, ssl=trusting, additional_headers=key, proxy=None) as stream:
        prompt = "4" * 40
        await stream.send(json.dumps({"op": "generate", "request_id": "a", "prompt": prompt}))
        text, frame = "", dict[str, Any]()
        while not frame.get("finish_reason"):
            frame = json.loads(await asyncio.wait_for(stream.recv(), DEADLINE_S))
            text += frame["text"]
    assert prompt.startswith(text) and text


async def test_cookies_are_for_https_alone_and_let_a_page_in(
    https: httpx.AsyncClient, address: str, trusting: ssl.SSLContext, secret: str
) -> None:
    page = {"origin": f"https://{address}"}
    login = await https.post("/v1/login", json={"key": secret}, headers=page)
    assert "Secure" in login.headers["set-cookie"].split("; ")
    cookie = {"cookie": login.headers["set-cookie"].split(";")[0], **page}
    async with connect(f"wss://{address}/v1/cluster/watch", ssl=trusting, additional_headers=cookie, proxy=None):
        pass


class TestOurClients:
    @pytest.fixture(autouse=True)
    def _trust(self, files: HttpsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(CA_FILE_ENV, str(files.ca))

    async def test_websockets(self, server: EmbeddedServer, address: str, secret: str) -> None:
        async with await dial(f"https://{address}", "/v1/cluster/watch", secret) as socket:
            assert await asyncio.wait_for(socket.recv(), DEADLINE_S)
        async with connected([f"https://{address}"], secret) as sockets:
            assert sockets

    async def test_requests(self, server: EmbeddedServer, address: str, secret: str) -> None:
        def listed() -> list[str]:
            with AdapterClient(f"https://{address}", secret) as client:
                return [adapter["name"] for adapter in client.all_adapters()]

        assert await asyncio.to_thread(listed) == ["roman"]
        async with cluster_client(f"https://{address}", secret) as client:
            assert len(await found_gpus(client)) == 1

    async def test_a_client_that_does_not_trust_it_learns_what_to_do(
        self, server: EmbeddedServer, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(CA_FILE_ENV)
        with pytest.raises(ClusterUnavailable, match=r"can't be trusted.*; set PUNICA_CA_FILE"):
            await dial(f"https://{address}", "/v1/cluster/watch", None)

    async def test_up_trusts_the_certificate_that_it_gave(
        self, server: EmbeddedServer, address: str, files: HttpsFiles, tmp_path: Path
    ) -> None:
        url = f"https://localhost:{address.split(':')[1]}"  # a name that is not in it
        console = Console(file=StringIO())
        assert await asyncio.wait_for(until_ready([url], console, files.config), DEADLINE_S) == []


async def test_a_client_that_does_not_trust_it_does_not_connect(server: EmbeddedServer, address: str) -> None:
    async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"https://{address}/health")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_versions_of_tls(
    https: httpx.AsyncClient, address: str, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trusting.maximum_version = version
    assert (await https.get("/health")).status_code == 200


async def test_plain_http_gets_nothing_and_harms_nobody(
    https: httpx.AsyncClient, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://{address}/health")
    assert (await https.get("/health")).status_code == 200
    assert not caplog.records, "a stranger's mistake is no line in the log"


async def test_a_client_that_never_opens_tls_is_cut(
    listener: socket.socket,
    app: FastAPI,
    dependencies: AppDependencies,
    files: HttpsFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uvicorn_server, "HANDSHAKE_TIMEOUT_S", 0.2)
    tls = server_context(files.config)
    server = http_server(app, dependencies.metrics.num_cut, max_body_bytes=1 << 20, max_connections=50, tls=tls)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    server.should_exit = True
    await serving


async def test_a_stalled_client_is_noticed_as_soon_as_without_tls(
    server: EmbeddedServer, listener: socket.socket, trusting: ssl.SSLContext
) -> None:
    """Its buffer is no larger."""
    _, writer = await asyncio.open_connection(*listener.getsockname(), ssl=trusting, server_hostname="127.0.0.1")
    await until(lambda: len(server.server_state.connections) == 1)
    (connection,) = server.server_state.connections
    assert connection.transport.get_write_buffer_limits()[1] == 64 << 10
    writer.close()


async def test_before_the_registry_is_there(
    listener: socket.socket, files: HttpsFiles, trusting: ssl.SSLContext
) -> None:
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    async with (
        _refusing(listener, 10, server_context(files.config)),
        httpx.AsyncClient(verify=trusting, timeout=DEADLINE_S, trust_env=False) as client,
    ):
        answers = [await client.get(f"{url}{path}") for path in ("/health", "/ready")]
    assert [answer.status_code for answer in answers] == [200, 503]
