"""Fields that no body of OpenAI's routes has: ignored by a list, without effect, or refused by name."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from unknown_fields import ADAPTERS, HINTS, NEUTRAL, REFUSED
from waits import DEADLINE_S

HELLO: dict[str, Any] = {"role": "user", "content": "hi"}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "4"},
    "/v1/chat/completions": {"messages": [HELLO]},
    "/tokenize": {"prompt": "4"},
    "/detokenize": {"tokens": [20]},
}
routes = pytest.mark.parametrize("route", ROUTES)


async def refusal(client: httpx.AsyncClient, route: str, **fields: Any) -> dict[str, Any]:
    response = await client.post(route, json=ROUTES[route] | fields)
    assert response.status_code == 400, (fields, response.text)
    return dict(response.json()["error"])


async def accept(client: httpx.AsyncClient, route: str, **fields: Any) -> None:
    response = await client.post(route, json=ROUTES[route] | fields)
    assert response.status_code == 200 and "x-punica-ignored-fields" not in response.headers, (fields, response.text)


@routes
async def test_an_adapter_under_another_name_is_refused(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str
) -> None:
    for name in (*ADAPTERS, "adapter_id"):
        error = await refusal(client, route, model="numbers", **{name: "roman"})
        message = f"`{name}` is not supported here; give the adapter's name as `model`"
        assert (error["param"], error["message"], error["code"]) == (name, message, "invalid_request")
    assert not cluster.requests


@routes
async def test_fields_that_would_change_the_answer_are_refused(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str
) -> None:
    for name, value in REFUSED.items():
        error = await refusal(client, route, **{name: value})
        assert error["param"] == {"odd\r\né": "odd???", "x" * 999: "x" * 64 + "..."}.get(name, name)
        assert error["message"].startswith(f"`{error['param']}` is not supported here; ")
    assert not cluster.requests


@routes
async def test_hints_are_ignored(client: httpx.AsyncClient, route: str) -> None:
    for name, value in HINTS.items():
        await accept(client, route, **{name: value})
    await accept(client, route, **HINTS)


@routes
async def test_neutral_values_count_as_left_out(client: httpx.AsyncClient, route: str) -> None:
    for name, value in NEUTRAL.items():
        await accept(client, route, **{name: value})
    await accept(client, route, **NEUTRAL)


@pytest.mark.parametrize("nothing", [None, False, "", [], {}])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_a_known_field_that_asks_for_nothing_is_as_if_left_out(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str, nothing: Any
) -> None:
    known = (
        *("model", "max_tokens", "n", "temperature", "top_p", "seed", "stop", "presence_penalty", "stream", "top_k"),
        *("frequency_penalty", "stream_options", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids"),
        *("ignore_eos", "logprobs", "top_logprobs", "max_completion_tokens", "best_of", "echo"),
    )
    await accept(client, route, **dict.fromkeys(known, nothing))
    sampling = cluster.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.logprobs) == (0.7, 0.9, None)


async def test_options_of_streams(client: httpx.AsyncClient) -> None:
    route = "/v1/completions"
    for options in ({}, {"include_usage": False}, {"include_usage": None, "include_obfuscation": True}):
        await accept(client, route, stream_options=options)
    hints = {"include_usage": True, "include_obfuscation": False}
    await accept(client, route, stream=True, stream_options=hints | {"include_obfuscation": True, "made_up": {}})
    error = await refusal(client, route, stream=True, stream_options=hints | {"include_usages": True})
    assert error["param"] == "stream_options.include_usages"
    assert error["message"].endswith("; did you mean `stream_options.include_usage`? Otherwise leave it out")


@routes
async def test_no_hint_is_proposed_since_it_would_do_nothing(client: httpx.AsyncClient, route: str) -> None:
    error = await refusal(client, route, response_format={"type": "json_object"})
    assert error["message"] == "`response_format` is not supported here; leave it out"


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/tokenize"])
async def test_messages_of_earlier_answers_are_taken_back(client: httpx.AsyncClient, route: str) -> None:
    answer: dict[str, Any] = {
        **{
            "role": "assistant",
            "content": "x",
            "refusal": "no",
            "annotations": [{"type": "url"}],
            "audio": {"id": "1"},
        },
        **{"id": "msg_1", "reasoning_content": "hm", "cache_control": {"type": "ephemeral"}, "tool_calls": []},
        **{"function_call": None, "name": None, "tool_call_id": "", "made_up": False},
    }
    part = {"type": "text", "text": "h", "cache_control": {"type": "ephemeral"}, "annotations": [1], "id": "1", "a": {}}
    body = {"messages": [answer, {"role": "user", "content": [part, {"type": "text", "text": "i"}]}]}
    response = await client.post(route, json=body)
    assert response.status_code == 200, response.text


IN_MESSAGES: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_calls": [{"id": "1"}]}, "tool_calls", "leave it out"),
    ({"function_call": {"name": "f"}}, "function_call", "leave it out"),
    ({"tool_call_id": "1"}, "tool_call_id", "leave it out"),
    ({"prefix": True}, "prefix", "leave it out"),
    ({"nam": "bob"}, "nam", "did you mean `messages.1.name`? Otherwise leave it out"),
    ({"adapter": "roman"}, "adapter", "give the adapter's name as `model`"),
    (
        {"content": [{"type": "text", "text": "h", "texts": "i"}]},
        "content.0.texts",
        "did you mean `messages.1.content.0.te",
    ),
    ({"content": [{"type": "text", "text": "h", "image_url": {"url": "u"}}]}, "content.0.image_url", "leave it out"),
]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize(("fields", "param", "advice"), IN_MESSAGES)
async def test_unknown_fields_of_messages_and_their_parts(
    client: httpx.AsyncClient, cluster: EchoCluster, route: str, fields: dict[str, Any], param: str, advice: str
) -> None:
    response = await client.post(route, json={"messages": [HELLO, HELLO | fields]})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, f"messages.1.{param}")
    assert error["message"].startswith(f"`messages.1.{param}` is not supported here; {advice}")
    assert not cluster.requests


async def test_the_error_suggests_the_nearest_name(client: httpx.AsyncClient) -> None:
    error = await refusal(client, "/v1/completions", temprature=0.5)
    assert error["message"] == "`temprature` is not supported here; did you mean `temperature`? Otherwise leave it out"
    error = await refusal(client, "/v1/completions", max_completion_tokens=3)
    assert error["message"] == "`max_completion_tokens` is not supported here; give `max_tokens`"
    response = await client.post("/v1/completions", json={"promt": "4"})
    assert response.json()["error"]["message"] == "`prompt`: Field required; did you mean it by `promt`?"


@pytest.mark.parametrize("text", [{"prompt": "4"}, {"messages": [HELLO]}])
async def test_the_same_on_the_websocket(address: str, text: dict[str, Any]) -> None:
    cases = [*((name, "roman") for name in ADAPTERS), *REFUSED.items(), *HINTS.items(), *NEUTRAL.items()]
    frames: list[dict[str, Any]] = []
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        for place, (name, value) in enumerate(cases):
            frame = {"op": "generate", "format": "openai", "max_tokens": 1, **text, name: value}
            await socket.send(json.dumps(frame | {"request_id": f"{place}"}))
        while sum(frame["done"] for frame in frames) < len(cases):
            frames.append(json.loads(await socket.recv()))
    refused = {int(frame["request_id"]): frame["error"]["message"] for frame in frames if frame["error"]}
    num_refused = len(ADAPTERS) + len(REFUSED)
    assert refused.keys() == set(range(num_refused)), [cases[place] for place in refused]
    for place, message in refused.items():
        assert " is not supported here; " in message
        assert ("give the adapter's name as `model`" in message) == (place < len(ADAPTERS)), message
    assert not any("ignored_fields" in frame for frame in frames)


async def test_each_refusal_is_counted_by_its_field(client: httpx.AsyncClient) -> None:
    await refusal(client, "/v1/completions", tools=[{}])
    await refusal(client, "/tokenize", tools=[{}])
    await refusal(client, "/v1/chat/completions", messages=[{**HELLO, "tool_call_id": "1"}])
    await refusal(client, "/v1/chat/completions", **{'a"} 7\né': 1})
    metrics = (await client.get("/metrics")).text
    for name, count in (("tools", 2), ("messages.tool_call_id", 1), ("other", 1)):
        assert f'punica_unknown_fields_total{{field="{name}",outcome="refused"}} {count}\n' in metrics
