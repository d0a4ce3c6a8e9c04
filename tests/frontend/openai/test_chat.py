"""POST /v1/chat/completions over a cluster that answers with the prompt, which a template spells."""

from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from echo_cluster import EchoCluster
from punica_serve.protocol import WireError
from punica_serve.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hi"}]


async def chat(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    ChatCompletion.model_validate(response.json(), strict=True)
    return dict(response.json())


async def prompt_of(client: httpx.AsyncClient, cluster: EchoCluster, tokenizer: Tokenizer, **body: Any) -> str:
    await chat(client, **body)
    return tokenizer.decode(cluster.requests[-1].prompt_ids, skip_special_tokens=False)


async def test_an_answer(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = await chat(client, model="roman")
    assert answer.pop("id").startswith("chatcmpl-") and answer.pop("created") > 0
    assert answer.pop("system_fingerprint").startswith("punica-serve-")
    message = {"role": "assistant", "content": "u:hi|a:", "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": "roman",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 8, "total_tokens": 15},
    }
    request = cluster.requests[0]
    assert cluster.digests == ["d1"] and request.sampling.max_tokens == 64 - 7


MESSAGES: list[tuple[list[dict[str, Any]], str]] = [
    ([{"role": "developer", "content": "be brief"}, *HELLO], "s:be brief|u:hi|a:"),
    ([*HELLO, {"role": "assistant", "content": None}, {"role": "assistant"}], "u:hi|a:|a:|a:"),
    ([{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}], "u:h\ni|a:"),
    ([{"role": "user", "content": "hi", "name": "bob", "tool_calls": None, "made_up": []}], "u:hi|a:"),
]


async def test_messages(client: httpx.AsyncClient, cluster: EchoCluster, tokenizer: Tokenizer) -> None:
    for messages, prompt in MESSAGES:
        assert await prompt_of(client, cluster, tokenizer, messages=messages) == prompt


async def test_a_prompt_without_the_answers_beginning(
    client: httpx.AsyncClient, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    assert await prompt_of(client, cluster, tokenizer, add_generation_prompt=False) == "u:hi|"


async def test_the_template_writes_the_special_tokens(
    client: httpx.AsyncClient, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    messages = [{"role": "user", "content": "</s>"}]
    assert await prompt_of(client, cluster, tokenizer, messages=messages) == "u:</s>|a:"


async def test_max_tokens(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 4, "max_tokens": 3}, {}):
        await chat(client, **fields)
    assert [request.sampling.max_tokens for request in cluster.requests] == [3, 4, 57]


async def test_several_choices(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = await chat(client, n=3, seed=5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [request.sampling.seed for request in cluster.requests] == [5, 6, 7]
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 24, "total_tokens": 31}


async def test_logprobs(client: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await chat(client, messages=[{"role": "user", "content": "é"}], logprobs=True, top_logprobs=1)
    tokens = answer["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens][:4] == ["u", ":", "\ufffd", "\ufffd"]
    assert bytes(byte for token in tokens[:-1] for byte in token["bytes"]).decode() == "u:é|a:"
    top = {"token": "u", "logprob": -0.5, "bytes": [ord("u")]}
    assert tokens[0] == {**top, "top_logprobs": [top]}
    assert answer["choices"][0]["logprobs"]["refusal"] is None


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
    ({"messages": [{"role": "system"}, *HELLO]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0"),
    ({"messages": [*HELLO, {"role": "tool", "content": "4"}]}, "messages.1.role"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls"),
    ({"messages": [{"role": "robot", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": "robot"}]}, "messages"),
    ({"messages": [{"role": "user", "content": "4" * 64}]}, "messages"),
    ({"max_completion_tokens": 64}, "max_completion_tokens"),
    ({"max_tokens": 64}, "max_tokens"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ({"logprobs": 1}, "logprobs"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"best_of": 2}, "best_of"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"add_special_tokens": True}, "add_special_tokens"),
    ({"echo": True}, "echo"),
    ({"lora_id": "roman"}, "lora_id"),
    ({"adapter_id": "roman"}, "adapter_id"),
    ({"n": 200}, "n"),
    ({"messages": HELLO * 4097}, "messages"),
]


async def test_refused_bodies(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for body, param in REFUSED:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO, **body})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), (body, error)
        assert error["type"] == "invalid_request_error" and param.split(".")[0] in error["message"]
    assert not cluster.requests


async def test_neutral_values_are_accepted(client: httpx.AsyncClient) -> None:
    nothing = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logit_bias": {}, "n": 1}
    ignored = {"user": "u", "metadata": {}, "store": False, "service_tier": "auto", "parallel_tool_calls": True}
    ignored |= {"reasoning_effort": "low", "priority": 1, "add_special_tokens": False}
    await chat(client, **nothing, **ignored)


async def test_the_error_for_an_unknown_role_names_all_roles(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "alien", "content": "hi"}]}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "'system', 'developer', 'user' or 'assistant', got 'alien'" in answer.json()["error"]["message"]


async def test_a_template_says_why_it_refuses(client: httpx.AsyncClient) -> None:
    body = {"messages": [{"role": "user", "content": "robot"}]}
    error = (await client.post("/v1/chat/completions", json=body)).json()["error"]
    assert error["message"].endswith("no robots") and error["param"] == "messages"


async def test_an_unknown_model(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, "model": "unheard-of"})
    assert response.status_code == 404 and response.json()["error"]["param"] == "model"


async def test_a_stream(official: openai.AsyncOpenAI) -> None:
    stream = await official.chat.completions.create(
        model="roman",
        messages=[{"role": "user", "content": "🦙"}],
        n=2,
        stream=True,
        logprobs=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = [chunk async for chunk in stream]
    texts, roles, num_logprobs = ["", ""], [[], []], [0, 0]  # type: ignore[var-annotated]
    for chunk in chunks:
        (choice,) = chunk.choices
        assert choice.logprobs and choice.logprobs.content
        texts[choice.index] += choice.delta.content or ""
        roles[choice.index].append(choice.delta.role)
        num_logprobs[choice.index] += len(choice.logprobs.content)
    assert texts == ["u:🦙|a:"] * 2
    assert all(role[0] == "assistant" and set(role[1:]) == {None} for role in roles)
    assert not last.choices and last.usage and last.usage.completion_tokens == sum(num_logprobs) == 20


async def test_a_stream_that_fails(official: openai.AsyncOpenAI, cluster: EchoCluster) -> None:
    cluster.failure, cluster.fail_at = WireError("cluster_unavailable", "the scheduler was lost"), 2
    stream = await official.chat.completions.create(
        model="numbers", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    with pytest.raises(openai.APIError, match="the scheduler was lost"):
        async for _ in stream:
            pass
