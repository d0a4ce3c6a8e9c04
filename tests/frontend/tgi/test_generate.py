"""POST /generate and /generate_stream over a cluster that answers with the prompt."""

import json
from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_serve.protocol import TenantQuota, WireError
from punica_serve.registry.registry import Registry


async def generate(client: httpx.AsyncClient, inputs: str = "42é", **parameters: Any) -> dict[str, Any]:
    response = await client.post("/generate", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def events(client: httpx.AsyncClient, inputs: str = "42é", **parameters: Any) -> list[dict[str, Any]]:
    response = await client.post("/generate_stream", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, rest = response.text.split("\n\n")
    assert rest == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_an_answer(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    assert await generate(client, adapter_id="roman") == {"generated_text": "42é"}
    request = cluster.requests[0]
    assert cluster.digests == ["d1"] and request.sampling.logprobs is None


async def test_the_base_model_answers_by_default(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    bodies: list[dict[str, Any]] = [{}, {"parameters": None}, {"parameters": {}}, {"parameters": {"adapter_id": ""}}]
    for body in bodies:
        assert (await client.post("/generate", json={"inputs": "4", **body})).json() == {"generated_text": "4"}
    assert {request.adapter for request in cluster.requests} == {None}


SAMPLING: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_tokens": 63}),
    ({"do_sample": True}, {"temperature": 1.0, "top_p": 1.0}),
    ({"temperature": 0.5}, {"temperature": 0.5}),
    ({"temperature": 0.0, "do_sample": True}, {"temperature": 0.0}),
    ({"top_k": 5}, {"temperature": 1.0, "top_k": 5}),
    ({"top_p": 0.5, "seed": 7}, {"temperature": 1.0, "top_p": 0.5, "seed": 7}),
    ({"max_new_tokens": 5, "repetition_penalty": 1.5}, {"max_tokens": 5, "repetition_penalty": 1.5}),
    ({"frequency_penalty": 0.5, "ignore_eos_token": True}, {"frequency_penalty": 0.5, "ignore_eos": True}),
]


async def test_parameters(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for parameters, sampling in SAMPLING:
        await generate(client, "4", api_token=None, adapter_source="", **parameters)
        given = cluster.requests[-1].sampling
        assert {name: getattr(given, name) for name in sampling} == sampling, parameters


async def test_details(client: httpx.AsyncClient) -> None:
    answer = await generate(client, "4é", details=True, decoder_input_details=True)
    details = answer["details"]
    tokens, prefill = details.pop("tokens"), details.pop("prefill")
    assert details == {
        "finish_reason": "eos_token",
        "prompt_tokens": 3,
        "generated_tokens": 4,
        "skipped_tokens": 0,
        "seed": None,
    }
    assert [(token["text"], token["special"]) for token in tokens] == [
        ("4", False),
        ("", False),
        ("é", False),
        ("</s>", True),
    ]
    assert {(token["logprob"], token["skipped"]) for token in tokens} == {(-0.5, False)}
    assert len(prefill) == 3 and (prefill[0]["text"], prefill[0]["logprob"]) == ("4", None)


async def test_a_sampled_answer_has_its_seed(client: httpx.AsyncClient) -> None:
    assert (await generate(client, details=True, do_sample=True, seed=7))["details"]["seed"] == 7
    assert (await generate(client, details=True, seed=7))["details"]["seed"] is None


async def test_alternatives(client: httpx.AsyncClient) -> None:
    details = (await generate(client, "4", details=True, return_k_alternatives=1))["details"]
    (alternative,) = details["tokens"][0]["alternative_tokens"]
    assert (alternative["text"], alternative["logprob"]) == ("4", -0.5) and "top_tokens" not in details
    details = (await generate(client, "4", details=True, top_n_tokens=1))["details"]
    assert [(top["text"], top["special"]) for (top,) in details["top_tokens"]] == [("4", False), ("</s>", True)]
    assert "alternative_tokens" not in details["tokens"][0]


async def test_a_stop_string_is_the_end_of_the_text(client: httpx.AsyncClient) -> None:
    answer = await generate(client, "one\ntwo", stop=["\n"], details=True)
    assert answer["generated_text"] == "one\n" and answer["details"]["finish_reason"] == "stop_sequence"
    *_, last = await events(client, "one\ntwo", stop=["\n"])
    assert last["generated_text"] == "one\n" and last["details"]["finish_reason"] == "stop_sequence"


async def test_the_length_is_a_reason(client: httpx.AsyncClient) -> None:
    answer = await generate(client, "42", max_new_tokens=1, details=True, return_full_text=True)
    assert answer["generated_text"] == "424" and answer["details"]["finish_reason"] == "length"


async def test_a_text_that_ends_in_the_middle_of_a_character(client: httpx.AsyncClient) -> None:
    answer = await generate(client, "é", max_new_tokens=1)
    assert answer["generated_text"] == "\ufffd"


async def test_inputs_are_cut_to_their_end(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = await generate(client, "1234" + "5" * 100, truncate=4, details=True)
    assert answer["generated_text"] == "5555" and answer["details"]["prompt_tokens"] == 4


async def test_the_best_of_several(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    details = (await generate(client, "4", best_of=3, do_sample=True, seed=7, details=True))["details"]
    assert len(details["best_of_sequences"]) == 2
    assert [details["seed"], *(other["seed"] for other in details["best_of_sequences"])] == [7, 8, 9]
    assert set(details["best_of_sequences"][0]) >= {"generated_text", "finish_reason", "prefill", "tokens"}
    assert await generate(client, "4", best_of=2, do_sample=True) == {"generated_text": "4"}


async def test_a_stream(client: httpx.AsyncClient) -> None:
    *pieces, last = await events(client, "4🦙", adapter_id="roman", do_sample=True, seed=3)
    assert [event["index"] for event in (*pieces, last)] == [1, 2, 3, 4, 5, 6]
    assert all(event["generated_text"] is event["details"] is None for event in pieces)
    assert "".join(event["token"]["text"] for event in pieces if not event["token"]["special"]) == "4🦙"
    assert last["token"]["special"] and last["generated_text"] == "4🦙"
    assert last["details"] == {
        "finish_reason": "eos_token",
        "prompt_tokens": 5,
        "input_length": 5,
        "generated_tokens": 6,
        "seed": 3,
    }


async def test_a_stream_with_top_tokens(client: httpx.AsyncClient) -> None:
    first, last = await events(client, "4", top_n_tokens=1, return_k_alternatives=1)
    assert first["top_tokens"] == [{**first["token"]["alternative_tokens"][0], "special": False}]
    assert [top["special"] for top in last["top_tokens"]] == [True]
    first, *_ = await events(client, "4")
    assert "top_tokens" not in first and "alternative_tokens" not in first["token"]


async def test_either(client: httpx.AsyncClient) -> None:
    body = {"inputs": "42", "parameters": {"adapter_id": "roman"}}
    assert (await client.post("/", json=body)).json() == [{"generated_text": "42"}]
    response = await client.post("/", json={**body, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream") and '"generated_text":"42"' in response.text
    assert (await client.post("/", json={**body, "stream": "yes"})).json()["error_type"] == "validation"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"inputs": 5}, "inputs"),
    ("/generate", {"inputs": ""}, "inputs"),
    ("/generate", {"inputs": "4" * 64}, "inputs"),
    ("/generate", {"parameters": {"temperature": -1}}, "parameters.temperature"),
    ("/generate", {"parameters": {"max_new_tokens": 64}}, "parameters.max_new_tokens"),
    ("/generate", {"parameters": {"top_p": 2}}, "parameters.top_p"),
    ("/generate", {"parameters": {"merged_adapters": {"ids": ["roman"]}}}, "parameters.merged_adapters"),
    ("/generate", {"parameters": {"watermark": True}}, "parameters.watermark"),
    ("/generate", {"parameters": {"typical_p": 0.5}}, "parameters.typical_p"),
    ("/generate", {"parameters": {"lora_id": "roman"}}, "as `parameters.adapter_id`"),
    ("/generate", {"lora_id": "roman"}, "`lora_id` is not supported here; give the adapter's name as `parameters."),
    ("/", {"adapter_id": "roman"}, "`adapter_id` is not supported here; give the adapter's name as `parameters."),
    ("/generate", {"parameters": {"grammar": {"type": "json"}}}, "parameters.grammar"),
    ("/generate", {"parameters": {"best_of": 2}}, "parameters.best_of"),
    ("/generate_stream", {"parameters": {"best_of": 2, "do_sample": True}}, "parameters.best_of"),
    ("/generate_stream", {"parameters": {"decoder_input_details": True}}, "parameters.decoder_input_details"),
    ("/generate_stream", {"parameters": {"seed": -1}}, "parameters.seed"),
]


async def test_refused_bodies(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for route, body, says in REFUSED:
        response = await client.post(route, json={"inputs": "4", **body})
        error = response.json()
        assert response.status_code == 422 and says in error["error"], (body, error)
        assert set(error) == {"error", "error_type"} and error["error_type"] == "validation"
    assert not cluster.requests


@pytest.mark.parametrize(
    ("body", "says"),
    [(b'{"inputs": "\xff"}', "it is not UTF-8 at byte 12"), (b'{"inputs"}', "the body is not JSON"), (b"7", "must be")],
)
async def test_an_unreadable_body_is_answered_in_their_format(
    client: httpx.AsyncClient, body: bytes, says: str
) -> None:
    response = await client.post("/generate", content=body, headers={"content-type": "application/json"})
    error = response.json()
    assert response.status_code == 422 and says in error["error"] and error["error_type"] == "validation", error


async def test_neutral_values_are_accepted(client: httpx.AsyncClient) -> None:
    await generate(client, merged_adapters=None, watermark=False, typical_p=None, response_format=None, made_up={})


ERRORS = [
    ("invalid_request", 422, "validation"),
    ("adapter_rejected", 424, "generation"),
    ("request_failed", 424, "generation"),
    ("quota_exceeded", 429, "overloaded"),
    ("cluster_unavailable", 503, "unavailable"),
]


@pytest.mark.parametrize("route", ["/generate", "/generate_stream"])
async def test_errors_of_the_cluster(client: httpx.AsyncClient, cluster: EchoCluster, route: str) -> None:
    for code, status, error_type in ERRORS:
        cluster.failure = WireError(code, "so it is", retry_after_s=7.0 if status == 429 else None)
        response = await client.post(route, json={"inputs": "4"})
        assert response.status_code == status
        assert response.json() == {"error": "so it is", "error_type": error_type}
        assert response.headers.get("retry-after") == {429: "7", 503: "2"}.get(status)


async def test_more_at_once_than_the_tenant_may_ever_have(
    client: httpx.AsyncClient, cluster: EchoCluster, registry: Registry
) -> None:
    await registry.put_tenant("default", quota=TenantQuota(max_concurrent=1), by="the test")
    body = {"inputs": "4", "parameters": {"best_of": 2, "do_sample": True}}
    response = await client.post("/generate", json=body)
    assert response.status_code == 422 and "`parameters.best_of`: all choices" in response.json()["error"]
    assert not cluster.requests


async def test_an_unknown_adapter(client: httpx.AsyncClient) -> None:
    for route in ("/generate", "/generate_stream"):
        response = await client.post(route, json={"inputs": "4", "parameters": {"adapter_id": "unheard-of"}})
        assert response.status_code == 404 and response.json()["error_type"] == "not_found"
        assert "'unheard-of'" in response.json()["error"]


async def test_an_adapter_that_is_not_served(client: httpx.AsyncClient) -> None:
    response = await client.post("/generate", json={"inputs": "4", "parameters": {"adapter_id": "broken"}})
    assert response.status_code == 424 and "`parameters.adapter_id`: adapter 'broken'" in response.json()["error"]


async def test_an_error_in_the_middle_of_a_stream(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.failure, cluster.fail_at = WireError("request_failed", "it kills workers"), 1
    first, last = await events(client)
    assert first["token"]["text"] == "4"
    assert last == {"error": "it kills workers", "error_type": "generation"}
    assert not cluster.live


async def test_info(client: httpx.AsyncClient) -> None:
    info = (await client.get("/info")).json()
    assert (info["model_id"], info["model_dtype"]) == ("numbers", "torch.float32")
    assert (info["max_total_tokens"], info["max_input_length"]) == (64, 63)


@pytest.mark.parametrize("path", ["/", "/generate", "/generate_stream"])
async def test_a_salt_goes_with_the_request(client: httpx.AsyncClient, cluster: EchoCluster, path: str) -> None:
    body: dict[str, Any] = {"inputs": "4", "parameters": {"cache_salt": "user-7"}}
    assert (await client.post(path, json=body)).status_code == 200
    assert [request.cache_salt for request in cluster.requests] == ["user-7"]
    refused = await client.post(path, json={"inputs": "4", "parameters": {"cache_salt": "s" * 300}})
    assert refused.status_code == 422 and "parameters.cache_salt" in refused.json()["error"]
