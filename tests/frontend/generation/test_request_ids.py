import logging
import re

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster

KNOWN = {"X-Request-Id": "mine-1"}


@pytest.mark.parametrize("path", ["/health", "/v1/cluster", "/nowhere"])
async def test_every_answer_has_the_id_that_its_client_gave(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path, headers=KNOWN)).headers["x-request-id"] == "mine-1"


async def test_an_error_tells_it_in_its_body_too(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/generate", json={"prompt": 7}, headers=KNOWN)
    assert response.json()["request_id"] == "mine-1"


async def test_an_internal_error_has_its_request_id(
    client: httpx.AsyncClient, cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(cluster, "cluster", fail)
    response = await client.get("/v1/cluster", headers=KNOWN)
    assert response.status_code == 500
    assert response.headers["x-request-id"] == response.json()["request_id"] == "mine-1"


@pytest.mark.parametrize("given", [None, "", "with space", "x" * 129, "line\tbreak"])
async def test_without_one_that_can_be_logged_one_is_made(client: httpx.AsyncClient, given: str | None) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    ids = {(await client.get("/health", headers=headers)).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2 and all(len(one) == 32 for one in ids)


async def test_the_cluster_knows_each_answer_by_it(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    body = {"model": "numbers", "prompt": "4", "n": 2}
    await client.post("/v1/completions", json=body, headers=KNOWN)
    ids = [request.request_id for request in cluster.requests]
    assert len(set(ids)) == 2 and all(one.startswith("mine-1-") for one in ids)


async def test_the_documented_example_is_a_possible_id(client: httpx.AsyncClient) -> None:
    page = (await client.get("/openapi.json")).json()
    content = page["paths"]["/v1/generate"]["post"]["responses"]["200"]["content"]["application/json"]
    answer = (await client.post("/v1/generate", json={"prompt": "42"})).json()
    for shown in (content["example"], answer):
        assert re.fullmatch("[0-9a-f]{32}-[0-9a-f]{16}", shown["request_id"])


async def test_the_end_of_a_request_is_one_line_with_its_figures(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "punica_frontend.generation.request_log")
    await client.post("/v1/generate", json={"prompt": "42", "lora_id": "roman"}, headers=KNOWN)
    (line,) = [record for record in caplog.records if record.name == "punica_frontend.generation.request_log"]
    fields = vars(line)["fields"]
    assert line.getMessage() == "request ended"
    assert fields.pop("request_id").startswith("mine-1-")
    assert 0 <= fields.pop("ttft_s") <= fields.pop("duration_s")
    assert fields == {
        "tenant": "default",
        "adapter": "shared/roman",
        "outcome": "stop",
        "prompt_tokens": 2,
        "tokens": 3,
    }


async def test_a_websocket_gets_its_request_id(app: FastAPI, address: str) -> None:
    async with connect(f"ws://{address}/v1/generate/stream", additional_headers=KNOWN, proxy=None) as socket:
        assert socket.response is not None and socket.response.headers["X-Request-Id"] == "mine-1"
