import httpx
import pytest

from punica_frontend.http.uvicorn_server import EmbeddedServer
from waits import DEADLINE_S


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/", "/dashboard", "/dashboard/main.js", "/v1/models", "/nowhere"]
)
async def test_head_has_the_head_of_get(client: httpx.AsyncClient, path: str) -> None:
    get, head = await client.get(path), await client.head(path)
    assert head.status_code == get.status_code
    assert {**head.headers, "x-request-id": ""} == {**get.headers, "x-request-id": ""}


async def test_no_body_is_sent(server: EmbeddedServer, address: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S, trust_env=False) as client:
        answers = [await client.head("/health") for _ in range(2)]  # a body would be read as the head of the next
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 2


async def test_a_route_without_get_has_no_head(client: httpx.AsyncClient) -> None:
    assert (await client.head("/v1/generate")).status_code == 405
    assert (await client.put("/v1/models")).headers["allow"] == "GET, HEAD"
