"""A proxy that ends TLS on another host, which on this one is another address of it: 127.0.0.2."""

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.frontend_section import FrontendConfig
from punica_serve.registry.registry import Registry
from waits import DEADLINE_S

PROXY, STRANGER = "127.0.0.2", "127.0.0.3"
#: Headers as a proxy passes them on.
SITE = {"host": "llm.example.com", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.7"}
PAGE = {**SITE, "origin": "https://llm.example.com"}


@pytest.fixture(autouse=True)
def _no_variable_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's library has one of its own."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")


@pytest.fixture
def auth_mode() -> str:
    return "keys"


@pytest.fixture
def proxies() -> tuple[str, ...]:
    return (PROXY,)


@pytest.fixture
def config(config: ClusterConfig, proxies: tuple[str, ...]) -> ClusterConfig:
    return config.model_copy(update={"frontend": FrontendConfig(trusted_proxies=proxies)})


@pytest.fixture
async def secret(registry: Registry) -> str:
    return (await registry.make_key("default", "user", "", None, by="the test"))[1]


def client_at(address: str, server_address: str) -> httpx.AsyncClient:
    """It dials from this address."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    return httpx.AsyncClient(base_url=f"http://{server_address}", transport=transport, timeout=DEADLINE_S)


async def cookie_of(address: str, server_address: str, secret: str) -> str:
    """The cookie that a login through a proxy at this address sets."""
    async with client_at(address, server_address) as client:
        answer = await client.post("/v1/login", json={"key": secret}, headers=PAGE)
    assert answer.status_code == 200
    return answer.headers["set-cookie"]


@pytest.mark.parametrize("proxies", [(PROXY,), ("127.0.0.2/31",), ("10.0.0.0/8", PROXY)])
async def test_a_cookie_of_https_alone(server: EmbeddedServer, address: str, secret: str) -> None:
    cookie = await cookie_of(PROXY, address, secret)
    assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))


@pytest.mark.parametrize(("proxies", "dialling"), [((PROXY,), STRANGER), ((), "127.0.0.1"), (("127.0.0.1",), PROXY)])
async def test_a_stranger_is_not_believed(server: EmbeddedServer, address: str, secret: str, dialling: str) -> None:
    assert "Secure" not in await cookie_of(dialling, address, secret)


async def test_redirects_hold_behind_it_and_name_no_host(server: EmbeddedServer, address: str) -> None:
    async with client_at(PROXY, address) as client:
        for path in ("/", "/docs/", "/dashboard/"):
            answer = await client.get(path, headers={**SITE, "x-forwarded-host": "evil.example"})
            assert answer.headers.get("location", "/dashboard") == "/dashboard"
            assert answer.status_code == (307 if path == "/" else 200)


async def test_a_websocket_of_a_page_behind_it(server: EmbeddedServer, address: str, secret: str) -> None:
    cookie = {"cookie": (await cookie_of(PROXY, address, secret)).split(";")[0]}
    url = f"ws://{address}/v1/generate/stream"
    for headers, is_let_in in ((PAGE, True), ({**PAGE, "origin": "https://evil.example"}, False)):
        sent = {name: value for name, value in {**headers, **cookie}.items() if name != "host"}
        # The library sets `Host` by the URL: the connection is made to the server all the same.
        host, port = address.split(":")
        dialling = connect(
            url.replace(address, "llm.example.com"),
            host=host,
            port=int(port),
            local_addr=(PROXY, 0),
            additional_headers=sent,
            proxy=None,
        )
        if is_let_in:
            async with dialling:
                pass
        else:
            with pytest.raises(InvalidStatus):
                await dialling
