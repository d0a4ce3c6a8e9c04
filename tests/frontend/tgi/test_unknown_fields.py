"""Fields that TGI's and LoRAX's routes do not have, beside `inputs` and in `parameters`."""

from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from unknown_fields import ADAPTERS, HINTS, NEUTRAL, REFUSED

ROUTES = ("/generate", "/generate_stream", "/")
#: Parameters with values that change nothing.
NOTHING = {"return_k_alternatives": 0, "top_n_tokens": 0, "details": False, "stop": [], "min_p": 0, "top_p": ""}

routes = pytest.mark.parametrize("route", ROUTES)


async def post(client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> httpx.Response:
    return await client.post(route, json={"inputs": "4", **body})


async def refusal(client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> str:
    response = await post(client, route, body)
    assert response.status_code == 422 and response.json()["error_type"] == "validation", (body, response.text)
    return str(response.json()["error"])


async def accept(client: httpx.AsyncClient, route: str, body: dict[str, Any]) -> None:
    response = await post(client, route, body)
    assert response.status_code == 200, (body, response.text)


@routes
async def test_fields_that_would_change_the_answer_are_refused(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str
) -> None:
    for name, value in {**REFUSED, "max_time": 3, "use_cache": 1}.items():
        told = {"odd\r\né": "odd???", "x" * 999: "x" * 64 + "..."}.get(name, name)
        assert (await refusal(client, route, {name: value})).startswith(f"`{told}` is not supported here; ")
        error = await refusal(client, route, {"parameters": {name: value}})
        assert error.startswith(f"`parameters.{told}` is not supported here; ")
    assert not cluster.requests


@routes
async def test_an_adapter_under_another_name_is_refused(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str
) -> None:
    advice = "is not supported here; give the adapter's name as `parameters.adapter_id`"
    for name in (*ADAPTERS, "model"):
        assert await refusal(client, route, {name: "roman"}) == f"`{name}` {advice}"
        assert await refusal(client, route, {"parameters": {name: "roman"}}) == f"`parameters.{name}` {advice}"
    assert await refusal(client, route, {"adapter_id": "roman"}) == f"`adapter_id` {advice}"
    assert not cluster.requests


@routes
async def test_hints_and_what_asks_for_nothing(client: httpx.AsyncClient, route: str) -> None:
    for name, value in [*HINTS.items(), *NEUTRAL.items(), ("add_special_tokens", True)]:
        await accept(client, route, {name: value, "parameters": {name: value}})
    await accept(client, route, {"parameters": NOTHING})
    await accept(client, route, {"parameters": {}})
    await accept(client, route, {"parameters": {"do_sample": False, "adapter_id": "", "top_p": "", "seed": {}}})


async def test_the_error_suggests_the_nearest_name(client: httpx.AsyncClient) -> None:
    error = await refusal(client, "/generate", {"parameters": {"max_new_token": 3}})
    assert error.endswith("; did you mean `parameters.max_new_tokens`? Otherwise leave it out")
    error = await refusal(client, "/generate", {"parameters": {"stop_sequences": ["a"]}})
    assert error.endswith("; give `parameters.stop`")


@routes
async def test_a_parameter_beside_them_is_sent_there(client: httpx.AsyncClient, route: str) -> None:
    for name, value in {"temperature": 0.5, "max_new_tokens": 3, "stop": ["a"], "details": True}.items():
        assert (
            await refusal(client, route, {name: value}) == f"`{name}` is not supported here; give `parameters.{name}`"
        )


async def test_a_stream_is_asked_for_where_it_comes(client: httpx.AsyncClient) -> None:
    await accept(client, "/generate", {"stream": False})
    await accept(client, "/generate_stream", {"stream": True})
    assert (await refusal(client, "/generate", {"stream": True})).endswith("; POST it to /generate_stream")
    assert (await refusal(client, "/generate_stream", {"stream": False})).endswith("; POST it to /generate")


async def test_a_refusal_is_counted_once_as_a_request_and_by_its_field(client: httpx.AsyncClient) -> None:
    await refusal(client, "/generate", {"parameters": {"watermark": True}})
    metrics = (await client.get("/metrics")).text
    assert 'punica_unknown_fields_total{field="parameters.watermark",outcome="refused"} 1' in metrics
    assert 'punica_requests_failed_total{code="invalid_request"} 1' in metrics
