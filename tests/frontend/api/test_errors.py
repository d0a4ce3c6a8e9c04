import asyncio
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from punica_frontend.api.errors import STATUS, SlowReader, from_wire, invalid_field, status_of
from punica_serve.errors import AdapterNotFound, ConfigError, PunicaError, RegistryUnavailable, RequestFailed
from punica_serve.protocol import WireError
from punica_serve.registry.registry import Registry
from waits import DEADLINE_S

JSON = {"content-type": "application/json"}


async def post(client: httpx.AsyncClient, content: bytes, headers: dict[str, str] = JSON) -> tuple[int, dict[str, Any]]:
    response = await client.post("/v1/generate", content=content, headers=headers)
    return response.status_code, response.json()["error"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"{",
            "the body is not JSON: Expecting property name enclosed in double quotes at line 1 column 2",
        ),
        (b'{"prompt": "4",\n "seed" 7}', "the body is not JSON: Expecting ':' delimiter at line 2 column 9"),
        (b'{"prompt": "4', "the body is not JSON: Unterminated string starting at line 1 column 12"),
        (b'{"prompt": "\xff"}', "the body can't be read: it is not UTF-8 at byte 12"),
        (b"[" * 100_000, "the body can't be read: it is nested too deeply"),
        (b'{"seed": ' + b"1" * 5_000 + b"}", "the body can't be read: a number in it has too many digits"),
    ],
)
async def test_broken_json(client: httpx.AsyncClient, content: bytes, message: str) -> None:
    status, error = await post(client, content)
    assert (status, error["code"], error["param"]) == (400, "invalid_request", None)
    assert error["message"] == message


@pytest.mark.parametrize(
    ("content", "headers"),
    [(b'{"prompt": "4"}', {"content-type": "text/plain"}), (b"[]", JSON), (b"4", JSON), (b"", JSON)],
)
async def test_a_body_that_is_no_object(client: httpx.AsyncClient, content: bytes, headers: dict[str, str]) -> None:
    status, error = await post(client, content, headers)
    assert status == 422
    assert "application/json" in error["message"]


async def test_a_field_whose_name_is_no_text(client: httpx.AsyncClient) -> None:
    status, error = await post(client, b'{"prompt": "42", "\\ud800": 1}')
    assert status == 422
    assert error["message"] == ("The name of a field should be valid Unicode, without lone surrogates, got '\\ud800'")


@pytest.mark.parametrize("field", ["prompt", "stop", "cache_salt"])
async def test_a_lone_surrogate_is_told_in_one_way(client: httpx.AsyncClient, field: str) -> None:
    status, error = await post(client, json.dumps({"prompt": "42", field: "\ud800"}).encode())
    assert status == 422
    assert error["message"].endswith(": Input should be valid Unicode, without lone surrogates, got '\\ud800'")
    assert error["message"].startswith(f"`{field}")


@pytest.mark.parametrize(
    "content",
    [
        b'{"input_ids": [' + b"[]," * 340_000 + b"[]]}",
        b'{"prompt": "4", "stop": [' + b"5," * 500_000 + b"5]}",
        b'{"input_ids": [' + b"5," * 500_000 + b"5]}",
        b"{" + b",".join(b'"%d": 0' % number for number in range(90_000)) + b"}",
    ],
    ids=["wrong ids", "wrong stop strings", "too many ids", "unknown fields"],
)
async def test_a_long_body_of_mistakes_does_not_stand_in_the_way(client: httpx.AsyncClient, content: bytes) -> None:
    started_s = time.process_time()  # not the clock: the machine may be busy
    status, error = await post(client, content)
    assert time.process_time() - started_s < 20.0
    assert status in (400, 422) and len(error["message"]) < 300


async def test_a_body_without_end_is_cut_off(client: httpx.AsyncClient) -> None:
    status, error = await post(client, b'{"prompt": "' + b"4" * (2 << 20))
    assert status == 413
    assert "longer than" in error["message"]


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    response = await client.get("/v2/generate")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "route_not_found"
    response = await client.get("/v1/generate")
    assert response.status_code == 405 and response.headers["allow"] == "POST"
    assert "takes POST, not GET" in response.json()["error"]["message"]
    assert (await client.put("/v1/adapters")).headers["allow"] == "GET, HEAD, POST"
    response = await client.get("/v1/generate/stream")
    assert (response.status_code, "is a websocket" in response.json()["error"]["message"]) == (404, True)


@pytest.mark.parametrize("action", ["pin", "unpin", "prefetch"])
@pytest.mark.parametrize("name", ["roman", "shared/roman"])
async def test_actions_on_an_adapter_accept_only_post(client: httpx.AsyncClient, name: str, action: str) -> None:
    path = f"/v1/adapters/{name}/{action}"
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE"):
        response = await client.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST"), method
    assert (await client.put(f"/v1/adapters/{name}")).headers["allow"] == "GET, HEAD, DELETE"


async def test_a_clients_long_value_is_shortened_in_errors(client: httpx.AsyncClient) -> None:
    much = "x" * 10_000
    answers = [
        await client.get(f"/{much}"),
        await client.delete(f"/v1/tenants/x/{much}"),
        await client.request(much, "/v1/generate"),
        await client.post("/v1/generate", json={"prompt": "4", much: 1}),
        await client.post("/v1/generate", content=b"{}", headers={"content-encoding": much}),
    ]
    assert [answer.status_code for answer in answers] == [404, 404, 405, 422, 415]
    assert max(len(answer.content) for answer in answers) < 1_000


async def test_a_compressed_body_is_refused_as_one(client: httpx.AsyncClient) -> None:
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = await client.post("/v1/generate", content=b"\x1f\x8b", headers=headers)
    assert answer.status_code == 415 and "compressed bodies are not supported" in answer.json()["error"]["message"]


async def test_more_than_one_wrong_field_is_said(client: httpx.AsyncClient) -> None:
    _, error = await post(client, b'{"prompt": "4", "top_p": 9, "top_k": -1}')
    assert error["message"].startswith("`top_p`: ") and error["message"].endswith("got 9 (and 1 more)")


async def test_a_misspelt_field_is_said_before_the_one_that_is_missing_for_it(client: httpx.AsyncClient) -> None:
    error = (await client.post("/v1/cluster/drain", json={"gpus": "CPU-1"})).json()["error"]
    assert error["param"] == "gpus"
    assert error["message"] == "`gpus`: there is no such field; did you mean `gpu`? /docs lists all fields"


@pytest.mark.parametrize(
    ("fields", "param", "advice"),
    [
        ({"max_token": 4}, "max_token", "did you mean `max_tokens`? /docs lists all fields"),
        ({"slo": {"first_token": 1.0}}, "slo.first_token", "did you mean `slo.first_token_s`? /docs lists all fields"),
        ({"guided_json": {}}, "guided_json", "/docs lists all fields"),
    ],
)
async def test_the_nearest_field_is_suggested_for_an_unknown_one(
    client: httpx.AsyncClient, address: str, fields: dict[str, Any], param: str, advice: str
) -> None:
    body = {"prompt": "4", **fields}
    _, error = await post(client, json.dumps(body).encode())
    assert (error["param"], error["message"]) == (param, f"`{param}`: there is no such field; {advice}")
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps({"op": "generate", "request_id": "1", **body}))
        assert json.loads(await socket.recv())["error"] == error


async def test_values_are_shown_as_json(client: httpx.AsyncClient) -> None:
    _, error = await post(client, b'{"prompt": "4", "ignore_eos": null}')
    assert error["message"].endswith(", got null")


@pytest.mark.parametrize("method, path", [("GET", "/v1/adapters/roman"), ("POST", "/v1/unload_lora_adapter")])
async def test_where_a_full_registry_is_goes_to_the_log_alone(
    client: httpx.AsyncClient,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
) -> None:
    def full(*_: str, **__: bool) -> None:
        raise RegistryUnavailable("the disk is full", detail="sqlite:////data/registry.db")

    monkeypatch.setattr(registry, "adapter", full)
    answer = await client.request(method, path, json={"lora_name": "roman"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the disk is full")
    logged = "a request failed: the disk is full (sqlite:////data/registry.db)"
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [logged]


def test_statuses() -> None:
    assert status_of(AdapterNotFound("x")) == 404
    assert status_of(ConfigError("x")) == STATUS[PunicaError] == 500


def kinds_below(kind: type[PunicaError]) -> Iterator[type[PunicaError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from kinds_below(below)


KINDS = [*(kind for kind in kinds_below(PunicaError) if kind.__module__ == PunicaError.__module__), SlowReader]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_error_comes_back_from_the_wire_as_it_was(kind: type[PunicaError]) -> None:
    error = from_wire(WireError.of(kind("wrong", param="top_p", retry_after_s=3.0)))
    assert (type(error), error.message, error.param, error.retry_after_s) == (kind, "wrong", "top_p", 3.0)


def test_an_error_of_a_kind_that_only_a_newer_peer_knows() -> None:
    assert type(from_wire(WireError("worker_exploded", "boom"))) is RequestFailed


def test_a_texts_length_is_told_in_characters_also_without_pydantics_context() -> None:
    told = {"type": "too_long", "msg": "Value should have at most 256 items after validation, not 300", "input": "s"}
    assert invalid_field(told, ("cache_salt",), 1).message.startswith(
        "`cache_salt`: String should have at most 256 characters, not 300, got "
    )


USER, PART = {"role": "user", "content": "42"}, {"type": "text", "text": "42"}
NO_PART = "Input should be a part of type text, with a string `text`; other parts are not supported, got "


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/generate", {"stop": 5}, "`stop`: Input should be a string or a list of strings, got 5"),
        ("/v1/generate", {"stop": ["a", 5]}, "`stop.1`: Input should be a valid string, got 5"),
        ("/v1/generate", {"stop": ["a"] * 17}, "`stop`: List should have at most 16 items, not 17, got ['a', "),
        ("/v1/generate", {"input_ids": [1, "x"]}, "`input_ids.1`: Input should be a valid integer, got 'x'"),
        ("/v1/generate", {"slo": [1]}, "`slo`: Input should be an object, got [1]"),
        ("/v1/completions", {"prompt": []}, "`prompt`: List should have at least 1 item, not 0, got []"),
        (
            "/v1/completions",
            {"prompt": 7},
            "`prompt`: Input should be a string, a list of strings, a list of token ids, ",
        ),
        ("/v1/completions", {"prompt": ["a", 5]}, "`prompt.1`: Input should be a string or a list of token ids, got 5"),
        (
            "/v1/completions",
            {"prompt": [[1], []]},
            "`prompt.1`: Input should be a string or a list of token ids, got []",
        ),
        ("/v1/completions", {"prompt": [1, "a"]}, "`prompt.1`: Input should be a token id, an integer, got 'a'"),
        ("/v1/completions", {"prompt": [1, True]}, "`prompt.1`: Input should be a token id, an integer, got true"),
        (
            "/v1/completions",
            {"prompt": ["a", [3, 1.5]]},
            "`prompt.1.1`: Input should be a token id, an integer, got 1.5",
        ),
        ("/v1/chat/completions", {"messages": [USER, "hi"]}, "`messages.1`: Input should be an object, got 'hi'"),
        (
            "/v1/chat/completions",
            {"messages": [USER | {"content": 5}]},
            "`messages.0.content`: Input should be a string or a list of text parts, got 5",
        ),
        (
            "/v1/chat/completions",
            {"messages": [USER, USER | {"content": [PART, {"type": "text"}]}]},
            f"`messages.1.content.1`: {NO_PART}{{'type': 'text'}}",
        ),
        ("/v1/chat/completions", {"messages": [USER | {"content": ["hi"]}]}, f"`messages.0.content.0`: {NO_PART}'hi'"),
    ],
)
async def test_a_wrong_item_of_a_list_is_told_by_its_place_and_what_belongs_there(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], message: str
) -> None:
    prompt = {} if {"input_ids", "messages"} & body.keys() else {"prompt": "42"}
    error = (await client.post(path, json=prompt | body)).json()["error"]
    assert error["message"].startswith(message)
    assert error["param"] == message.split("`")[1]
