"""Over the whole application: who comes in, and how."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_frontend.tenancy import sessions
from punica_frontend.tenancy.sessions import Sessions
from punica_serve.registry.registry import Registry
from tenant_keys import ClientOf, Keys
from waits import DEADLINE_S, until

ORIGIN = {"origin": "http://frontend"}


def cookie_of(secret: str, now_s: float | None = None) -> dict[str, str]:
    """The header of a browser that has logged in with a key."""
    key_id = secret.split("-")[1]
    return {"cookie": f"{sessions.NAME}={Sessions('secret').cookie(key_id, now_s or time.time())}"}


@pytest.mark.parametrize("path", ["/health", "/ready", "/health/", "/ping"])
async def test_public_routes(client: httpx.AsyncClient, keys: Keys, path: str) -> None:
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models",
        "/version",
        "/openapi.json",
        "/metrics",
        "/health/x",
        "/nowhere",
        "http://frontend//health",
    ],
)
async def test_all_else_needs_a_key(client: httpx.AsyncClient, keys: Keys, path: str) -> None:
    response = await client.get(path)
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
    assert "Authorization: Bearer" in error["message"]


async def test_head_is_as_public_as_get(client: httpx.AsyncClient, keys: Keys) -> None:
    paths = ("/health", "/ready", "/", "/dashboard", "/docs", "/v1/models", "/openapi.json")
    assert [(await client.head(path)).status_code for path in paths] == [200, 200, 307, 200, 200, 401, 401]


async def test_a_body_is_not_read_before_the_key(client: httpx.AsyncClient, keys: Keys) -> None:
    async def never_sent() -> Any:
        raise AssertionError("the body was read")
        yield b""

    assert (await client.post("/v1/generate", content=never_sent())).status_code == 401


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("Basic YTpi", "must be `Bearer`"),
        ("Bearer", "not valid"),
        ("Bearer ", "not valid"),
        ("Bearer nonsense", "not valid"),
        ("Bearer ps-0123456789ab-" + "A" * 43, "not valid"),
        ("Bearer " + "x" * 5_000, "not valid"),
        ("Bearer é\x80", "not valid"),
    ],
)
async def test_invalid_keys(client: httpx.AsyncClient, keys: Keys, header: str, says: str) -> None:
    response = await client.get("/v1/models", headers=[(b"authorization", header.encode("latin-1"))])
    assert response.status_code == 401
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_a_key_lets_in(client: httpx.AsyncClient, keys: Keys, scheme: str) -> None:
    response = await client.get("/v1/models", headers={"authorization": f"{scheme} {keys.acme}"})
    assert [model["id"] for model in response.json()["data"]] == ["numbers", "roman", "latin"]


async def test_a_key_that_is_not_quite_it(client_of: ClientOf, keys: Keys) -> None:
    for secret in (keys.acme[:-1], keys.acme + "A", keys.acme.upper(), keys.acme.split("-")[1]):
        assert (await client_of(secret).get("/v1/models")).status_code == 401


async def test_a_revoked_key_is_refused(client_of: ClientOf, keys: Keys) -> None:
    key, secret = await keys.make("acme")
    assert (await client_of(secret).get("/v1/models")).status_code == 200
    await keys.registry.revoke_key(key.key_id, by="the test")
    assert (await client_of(secret).get("/v1/models")).status_code == 401
    assert (await client_of(None).get("/v1/models", headers=cookie_of(secret))).status_code == 401


async def test_a_key_that_expires(client_of: ClientOf, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = await keys.make("acme", expires_s=time.time() + 1_000)
    cookie = cookie_of(secret)
    assert (await client_of(secret).get("/v1/models")).status_code == 200
    assert (await client_of(None).get("/v1/models", headers=cookie)).status_code == 200
    monkeypatch.setattr(keys.registry, "_clock", lambda: time.time() + 2_000)
    assert (await client_of(secret).get("/v1/models")).status_code == 401


async def test_a_cookie_that_expired(client: httpx.AsyncClient, keys: Keys) -> None:
    old = cookie_of(keys.acme, now_s=time.time() - sessions.LIFETIME_S)
    response = await client.get("/v1/models", headers=old)
    assert response.status_code == 401
    assert "log in again" in response.json()["error"]["message"]


async def test_a_cookie_is_for_pages_of_the_frontend(client: httpx.AsyncClient, keys: Keys) -> None:
    cookie, body = cookie_of(keys.acme), {"prompt": "4"}
    own = await client.post("/v1/generate", json=body, headers=cookie | ORIGIN)
    others = await client.post("/v1/generate", json=body, headers=cookie | {"origin": "http://evil.example"})
    without = await client.post("/v1/generate", json=body, headers=cookie)
    assert [own.status_code, others.status_code, without.status_code] == [200, 403, 403]
    assert others.json()["error"]["code"] == "permission_denied"


async def test_a_key_needs_no_origin_and_goes_before_a_cookie(client_of: ClientOf, keys: Keys) -> None:
    elsewhere = cookie_of(keys.bolt) | {"origin": "http://evil.example"}
    response = await client_of(keys.acme).post(
        "/v1/generate", json={"prompt": "4", "lora_id": "latin"}, headers=elsewhere
    )
    assert response.status_code == 200


End = Callable[[Registry, str], Awaitable[object]]


async def revoke(registry: Registry, key_id: str) -> None:
    await registry.revoke_key(key_id, by="the test")


async def suspend(registry: Registry, key_id: str) -> None:
    await registry.patch_tenant("acme", {"suspended": True}, by="the test")


class TestWebsockets:
    """By a real server, since the handshake is its own."""

    def url(self, address: str) -> str:
        return f"ws://{address}/v1/generate/stream"

    async def refusal(self, address: str, **headers: str) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as caught:
            async with connect(self.url(address), additional_headers=headers, proxy=None):
                pass
        body = caught.value.response.body
        assert body is not None
        return caught.value.response.status_code, json.loads(body)["error"]["code"]

    async def test_one_without_a_key_is_never_accepted(
        self, address: str, keys: Keys, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert await self.refusal(address) == (401, "invalid_api_key")
        assert await self.refusal(address, authorization="Bearer nonsense") == (401, "invalid_api_key")
        await until(lambda: not server.server_state.tasks)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    async def test_a_browser_comes_in_with_a_cookie_from_a_page_of_the_frontend(self, address: str, keys: Keys) -> None:
        cookie = cookie_of(keys.acme)
        assert await self.refusal(address, **cookie) == (403, "permission_denied")
        assert await self.refusal(address, **cookie, origin="http://evil.example") == (403, "permission_denied")
        headers = cookie | {"origin": f"http://{address}"}
        async with connect(self.url(address), additional_headers=headers, proxy=None) as socket:
            assert (await ask(socket, "latin"))["error"] is None
            assert (await ask(socket, "greek"))["error"]["code"] == "adapter_not_found"

    @pytest.mark.parametrize("end", [revoke, suspend])
    async def test_one_ends_with_its_key(self, address: str, keys: Keys, server: EmbeddedServer, end: End) -> None:
        key, secret = await keys.make("acme")
        headers = {"authorization": f"Bearer {secret}"}
        async with connect(self.url(address), additional_headers=headers, proxy=None) as socket:
            assert (await ask(socket, "latin"))["error"] is None
            await end(keys.registry, key.key_id)
            with pytest.raises(ConnectionClosedError, match="no longer valid, or its tenant is suspended"):
                await ask(socket, "latin")


async def ask(socket: ClientConnection, lora_id: str) -> Any:
    """The last frame of an answer."""
    await socket.send(json.dumps({"op": "generate", "request_id": "1", "prompt": "4", "lora_id": lora_id}))
    while (frame := json.loads(await socket.recv()))["finish_reason"] is None:
        pass
    return frame


@pytest.mark.parametrize("end", [revoke, suspend])
async def test_a_key_that_has_ended_watches_no_longer(address: str, keys: Keys, end: End) -> None:
    key, secret = await keys.make("acme")
    headers = {"authorization": f"Bearer {secret}"}
    async with connect(f"ws://{address}/v1/cluster/watch?per_s=5", additional_headers=headers, proxy=None) as socket:
        await socket.recv()
        await end(keys.registry, key.key_id)
        with pytest.raises(ConnectionClosedError, match="no longer valid, or its tenant is suspended") as closed:
            while True:
                await asyncio.wait_for(socket.recv(), DEADLINE_S)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
