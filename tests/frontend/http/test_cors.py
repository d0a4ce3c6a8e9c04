"""Pages of other origins, on the whole application."""

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin

from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.frontend_section import FrontendConfig
from punica_serve.registry.registry import Registry
from waits import DEADLINE_S

APP = "https://app.example.com"
OTHER = "https://evil.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture
def origins() -> tuple[str, ...]:
    return (APP,)


@pytest.fixture
def config(config: ClusterConfig, origins: tuple[str, ...]) -> ClusterConfig:
    return config.model_copy(update={"frontend": FrontendConfig(cors_origins=origins)})


@pytest.fixture
async def secret(registry: Registry) -> str:
    return (await registry.make_key("default", "user", "", None, by="the test"))[1]


class TestKeys:
    @pytest.fixture
    def auth_mode(self) -> str:
        return "keys"

    async def test_a_browser_asks_first_and_needs_no_key_for_that(self, client: httpx.AsyncClient) -> None:
        answer = await client.options("/v1/generate", headers={"origin": APP, **PREFLIGHT})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == APP
        assert "authorization" in answer.headers["access-control-allow-headers"]
        assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in answer.headers
        assert "Origin" in answer.headers["vary"]

    async def test_a_page_reads_answers_and_refusals(self, client: httpx.AsyncClient, secret: str) -> None:
        key = {"authorization": f"Bearer {secret}", "origin": APP}
        answers = [
            await client.post("/v1/generate", json={"prompt": "42"}, headers=key),
            await client.post("/v1/generate", json={"prompt": "42", "what": 1}, headers=key),
            await client.get("/v1/models", headers={"origin": APP}),
            await client.get("/nowhere", headers=key),
        ]
        assert [answer.status_code for answer in answers] == [200, 422, 401, 404]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == APP
            exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
            assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests"} <= set(exposed)
            assert "access-control-allow-credentials" not in answer.headers

    async def test_a_page_of_another_origin_reads_nothing(self, client: httpx.AsyncClient, secret: str) -> None:
        refused = await client.options("/v1/generate", headers={"origin": OTHER, **PREFLIGHT})
        assert (refused.status_code, "frontend.cors_origins" in refused.json()["error"]["message"]) == (400, True)
        answer = await client.get("/v1/models", headers={"origin": OTHER, "authorization": f"Bearer {secret}"})
        for each in (refused, answer):
            assert "access-control-allow-origin" not in each.headers

    async def test_never_with_a_cookie(self, client: httpx.AsyncClient, secret: str) -> None:
        """Neither does a page of another origin get one, nor does its browser's cookie let it in."""
        assert (await client.post("/v1/login", json={"key": secret}, headers={"origin": APP})).status_code == 403
        own = {"origin": "http://frontend"}
        assert (await client.post("/v1/login", json={"key": secret}, headers=own)).status_code == 200
        assert (await client.post("/v1/generate", json={"prompt": "42"}, headers=own)).status_code == 200
        answer = await client.post("/v1/generate", json={"prompt": "42"}, headers={"origin": APP})
        assert answer.status_code == 403

    async def test_a_websocket_with_a_cookie_is_refused(
        self, server: EmbeddedServer, address: str, secret: str
    ) -> None:
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S, trust_env=False) as client:
            login = await client.post("/v1/login", json={"key": secret}, headers={"origin": f"http://{address}"})
        cookie = {"cookie": login.headers["set-cookie"].split(";")[0]}
        url = f"ws://{address}/v1/generate/stream"
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, origin=Origin(APP), additional_headers=cookie, proxy=None)
        assert refused.value.response.status_code == 403
        async with connect(url, origin=Origin(f"http://{address}"), additional_headers=cookie, proxy=None):
            pass

    @pytest.mark.parametrize("origins", [("*",)])
    async def test_any_page_may_come_with_a_key(self, client: httpx.AsyncClient, secret: str) -> None:
        asked = await client.options("/v1/generate", headers={"origin": OTHER, **PREFLIGHT})
        key = {"authorization": f"Bearer {secret}", "origin": OTHER}
        answer = await client.post("/v1/generate", json={"prompt": "42"}, headers=key)
        for each in (asked, answer):
            assert (each.status_code, each.headers["access-control-allow-origin"]) == (200, "*")

    @pytest.mark.parametrize("origins", [()])
    async def test_it_is_off_by_default(self, client: httpx.AsyncClient, secret: str) -> None:
        asked = await client.options("/v1/generate", headers={"origin": APP, **PREFLIGHT})
        key = {"authorization": f"Bearer {secret}", "origin": APP}
        answer = await client.get("/v1/models", headers=key)
        assert (asked.status_code, answer.status_code) == (401, 200)
        for each in (asked, answer):
            assert not [name for name in each.headers if name.startswith("access-control")]


class TestWithoutKeys:
    """Where everybody is let in, so is a page that is named: and no other, whatever "*" says of those with keys."""

    async def test_a_page_that_is_named(self, client: httpx.AsyncClient) -> None:
        statuses = [(await client.get("/v1/models", headers={"origin": origin})).status_code for origin in (APP, OTHER)]
        assert statuses == [200, 403]

    @pytest.mark.parametrize("origins", [("*",)])
    async def test_all_pages_are_those_with_a_key(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/v1/models", headers={"origin": OTHER})).status_code == 403

    @pytest.mark.parametrize("path", ["/v1/generate/stream", "/v1/cluster/watch"])
    async def test_its_websockets(self, server: EmbeddedServer, address: str, path: str) -> None:
        async with connect(f"ws://{address}{path}", origin=Origin(APP), proxy=None):
            pass
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://{address}{path}", origin=Origin(OTHER), proxy=None)
        assert refused.value.response.status_code == 403


async def test_a_bug_of_ours_can_be_read_too(app: FastAPI, client: httpx.AsyncClient) -> None:
    @app.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    answer = await client.get("/v1/broken", headers={"origin": APP})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (500, APP)
    assert answer.headers["x-request-id"] == answer.json()["request_id"]
