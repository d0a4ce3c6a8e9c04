"""`slo` on every route that generates; the template of these tests lets chats in."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from punica_serve.protocol import Limits, Slo, TenantQuota
from punica_serve.registry.registry import Registry
from waits import DEADLINE_S

MESSAGE = {"role": "user", "content": "4"}

#: Path, body, the place of `slo` in it, and the status of a field with a wrong value.
ROUTES: dict[str, tuple[dict[str, Any], tuple[str, ...], int]] = {
    "/v1/generate": ({"prompt": "4"}, (), 422),
    "/v1/completions": ({"prompt": "4"}, (), 400),
    "/v1/chat/completions": ({"messages": [MESSAGE]}, (), 400),
    "/generate": ({"inputs": "4"}, ("parameters",), 422),
    "/generate_stream": ({"inputs": "4"}, ("parameters",), 422),
    "/": ({"inputs": "4"}, ("parameters",), 422),
}
WRONG = (
    '{"first_token_s": 0}',
    '{"first_token_s": -1}',
    '{"first_token_s": 1e999}',
    '{"first_token_s": NaN}',
    '{"first_token_s": "1"}',
    '{"first_token_s": true}',
    '{"first_token_s": [1]}',
    '{"time_per_token_s": 1e7}',
    '{"time_per_token_s": 1' + 400 * "0" + "}",
    '{"first_token_s": 1, "itl_s": 1}',
    '{"first_token_s": null}',
    "{}",
    '""',
    "[]",
    "false",
    "0.5",
)


def content(path: str, slo: str) -> str:
    body, places, _ = ROUTES[path]
    fields = f'"slo": {slo}'
    for place in places:
        fields = f'"{place}": {{{fields}}}'
    return f"{json.dumps(body)[:-1]}, {fields}}}"


async def post(client: httpx.AsyncClient, path: str, slo: str) -> httpx.Response:
    return await client.post(path, content=content(path, slo), headers={"content-type": "application/json"})


@pytest.mark.parametrize("path", ROUTES)
async def test_promises_reach_the_cluster(client: httpx.AsyncClient, cluster: EchoCluster, path: str) -> None:
    for slo, expected in (
        ('{"first_token_s": 2, "time_per_token_s": 0.05}', Slo(2.0, 0.05)),
        ('{"time_per_token_s": 1e-3, "first_token_s": null}', Slo(None, 0.001)),
        ("null", None),
    ):
        assert (await post(client, path, slo)).status_code == 200
        assert cluster.requests[-1].slo == expected


@pytest.mark.parametrize("path", ROUTES)
async def test_what_can_not_be_promised_is_refused_by_field(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str
) -> None:
    _, places, status = ROUTES[path]
    for slo in WRONG:
        response = await post(client, path, slo)
        assert response.status_code == status, (slo, response.text)
        if "NaN" not in slo:
            error = response.json()["error"]
            assert ".".join((*places, "slo")) in (error if isinstance(error, str) else error["param"]), slo
        assert cluster.requests == [], slo


@pytest.mark.parametrize("path", ROUTES)
async def test_less_than_an_idle_gpu_needs_is_refused_with_its_figure(
    client: httpx.AsyncClient, cluster: EchoCluster, path: str
) -> None:
    cluster.limits = Limits(1, least_first_token_s=0.0125)
    refused = await post(client, path, '{"first_token_s": 0.012}')
    _, places, _ = ROUTES[path]
    assert refused.status_code == (422 if places else 400)
    assert "an idle GPU needs 0.0125 s" in refused.text
    assert ".".join((*places, "slo", "first_token_s")) in refused.text
    assert (await post(client, path, '{"first_token_s": 0.0125}')).status_code == 200


async def test_all_choices_are_promised_the_same(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    body = {"prompt": ["4", "5"], "n": 2, "slo": {"first_token_s": 1.5}}
    assert (await client.post("/v1/completions", json=body)).status_code == 200
    assert [request.slo for request in cluster.requests] == [Slo(1.5)] * 4


async def test_a_requests_promises_are_fixed_when_it_arrives(
    client: httpx.AsyncClient, cluster: EchoCluster, registry: Registry
) -> None:
    await registry.put_tenant("default", TenantQuota(), slo=Slo(3.0, 0.3), by="the test")
    await client.post("/v1/generate", json={"prompt": "4", "slo": {"first_token_s": 1.0}})
    await registry.put_tenant("default", TenantQuota(), slo=Slo(9.0), by="the test")
    await client.post("/v1/generate", json={"prompt": "4"})
    await registry.put_tenant("default", TenantQuota(), by="the test")
    await client.post("/v1/generate", json={"prompt": "4"})
    assert [request.slo for request in cluster.requests] == [Slo(1.0, 0.3), Slo(9.0), None]


@pytest.mark.parametrize(
    "fields", [{"prompt": "4"}, {"prompt": "4", "format": "openai"}, {"messages": [MESSAGE], "format": "openai"}]
)
async def test_frames_of_a_websocket_promise_too(address: str, cluster: EchoCluster, fields: dict[str, Any]) -> None:
    cluster.limits = Limits(1, least_first_token_s=0.01)
    promises = {"good": {"first_token_s": 2}, "empty": {}, "short": {"first_token_s": 0.001}}
    errors: dict[str, Any] = {}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        for request_id, slo in promises.items():
            await socket.send(json.dumps({"op": "generate", "request_id": request_id, "slo": slo, **fields}))
        while len(errors) < len(promises):
            frame = json.loads(await socket.recv())
            if frame.get("finish_reason") or frame.get("done"):
                errors[frame["request_id"]] = frame["error"] and frame["error"]["param"]
    assert errors == {"good": None, "empty": "slo", "short": "slo.first_token_s"}
    assert [request.slo for request in cluster.requests] == [Slo(2.0)]
