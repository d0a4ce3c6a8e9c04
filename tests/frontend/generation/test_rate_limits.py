"""The `x-ratelimit-*` headers, on every route that generates."""

from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_serve.protocol import RateLimits, WireError

BOTH = RateLimits(1, 60, 59, 1000, 940, 58.5)
TEXT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/generate", {"prompt": "42"}),
    ("/v1/completions", {"prompt": "42"}),
    ("/generate", {"inputs": "42"}),
)
STREAMS = (
    ("/v1/generate", {"prompt": "42", "stream": True}),
    ("/v1/completions", {"prompt": "42", "stream": True}),
    ("/generate_stream", {"inputs": "42"}),
)


def limits_in(response: httpx.Response) -> dict[str, str]:
    prefix = "x-ratelimit-"
    return {name.removeprefix(prefix): value for name, value in response.headers.items() if name.startswith(prefix)}


@pytest.mark.parametrize(("path", "body"), [*TEXT, *STREAMS])
async def test_an_answer_tells_what_is_left(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str, body: dict[str, Any]
) -> None:
    cluster.rate_limits = BOTH
    response = await client.post(path, json=body)
    assert response.status_code == 200
    assert limits_in(response) == {
        "limit-requests": "60",
        "remaining-requests": "59",
        "reset-requests": "58.500s",
        "limit-tokens": "1000",
        "remaining-tokens": "940",
        "reset-tokens": "58.500s",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_all_choices_are_counted(client: httpx.AsyncClient, cluster: EchoCluster, stream: bool) -> None:
    cluster.rate_limits = BOTH
    response = await client.post("/v1/completions", json={"prompt": "42", "n": 3, "stream": stream})
    assert limits_in(response)["remaining-requests"] == "57"


@pytest.mark.parametrize(("path", "body"), [*TEXT, *STREAMS])
async def test_so_does_a_refusal(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str, body: dict[str, Any]
) -> None:
    cluster.rate_limits = RateLimits(1, 60, 0, None, None, 12.0)
    cluster.failure = WireError("quota_exceeded", "no more", retry_after_s=3.0)
    response = await client.post(path, json=body)
    assert response.status_code == 429
    assert limits_in(response) == {"limit-requests": "60", "remaining-requests": "0", "reset-requests": "12.000s"}


async def test_without_limits_there_are_no_headers(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    assert limits_in(await client.post("/v1/generate", json={"prompt": "42"})) == {}
    cluster.rate_limits = BOTH
    assert limits_in(await client.get("/v1/models")) == {}
    assert limits_in(await client.post("/v1/generate", json={"prompt": ""})) == {}, "the scheduler never saw it"
