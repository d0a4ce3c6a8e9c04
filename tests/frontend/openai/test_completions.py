"""POST /v1/completions over a cluster that answers with the prompt."""

from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion

from echo_cluster import EchoCluster
from punica_serve.protocol import TenantQuota, WireError
from punica_serve.registry.registry import Registry


async def complete(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    Completion.model_validate(response.json(), strict=True)
    return dict(response.json())


async def refusal(client: httpx.AsyncClient, **body: Any) -> tuple[int, dict[str, Any]]:
    response = await client.post("/v1/completions", json=body)
    return response.status_code, response.json()["error"]


async def test_an_answer(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = await complete(client, model="roman", prompt="42é")
    assert answer.pop("id").startswith("cmpl-") and answer.pop("created") > 0
    assert answer == {
        "object": "text_completion",
        "model": "roman",
        "choices": [{"index": 0, "text": "42é", "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
    }
    assert cluster.digests == ["d1"]
    assert cluster.requests[0].sampling.max_tokens == 16


async def test_names_of_models(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    digests = {"numbers": None, None: None, "": None, "roman": "d1", "numbers:roman": "d1", "shared/roman": "d1"}
    for name, digest in digests.items():
        answer = await complete(client, model=name, prompt="4")
        assert answer["model"] == (name or "numbers")
        adapter = cluster.requests[-1].adapter
        assert (adapter and adapter.digest) == digest, name


async def test_an_unknown_model(client: httpx.AsyncClient) -> None:
    for name in ("unheard-of", "numbers:unheard-of", "x" * 999):
        status, error = await refusal(client, model=name, prompt="4")
        assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert error["message"] == f"the model {name[:200]!r} does not exist; GET /v1/models lists the models"


async def test_a_model_that_is_not_served_says_why(client: httpx.AsyncClient) -> None:
    status, error = await refusal(client, model="broken", prompt="4")
    assert (status, error["param"]) == (400, "model")
    assert error["message"].startswith("`model`: adapter 'broken' is not served")


async def test_every_field_reaches_the_cluster(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    sampling = {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.8,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1.5,
        "frequency_penalty": 1,
        "seed": 7,
        "stop_token_ids": [7, 8],
        "ignore_eos": True,
        "logprobs": 2,
    }
    await complete(client, prompt=[5, 6], stop=["x"], user="u", made_up=None, top_a=0, **sampling)
    request = cluster.requests[0]
    assert request.prompt_ids == (5, 6)
    assert {name: getattr(request.sampling, name) for name in sampling} == {**sampling, "stop_token_ids": (7, 8)}


async def test_null_is_the_models_own(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    names = ("max_tokens", "temperature", "top_p", "n", "seed", "stop", "presence_penalty", "logprobs", "best_of")
    await complete(client, prompt="4", **dict.fromkeys((*names, "logit_bias", "suffix", "stream", "stream_options")))
    sampling = cluster.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.7, 0.9, 16)


async def test_vllms_and_openais_ways_to_say_it(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    await complete(client, prompt="4", top_k=-1, seed=-1)
    sampling = cluster.requests[0].sampling
    assert (sampling.top_k, sampling.seed) == (0, (1 << 64) - 1)


async def test_the_default_of_max_tokens(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for min_tokens, prompt in ((0, "4"), (20, "4"), (0, "4" * 60)):
        await complete(client, prompt=prompt, min_tokens=min_tokens)
    assert [request.sampling.max_tokens for request in cluster.requests] == [16, 20, 4]


@pytest.mark.parametrize("prompts", [["4", "56"], [[20, 21], [22]]])
async def test_several_prompts_with_several_choices(
    client: httpx.AsyncClient, cluster: EchoCluster, prompts: Any
) -> None:
    answer = await complete(client, prompt=prompts, n=2, seed=(1 << 64) - 1)
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert choices[0]["text"] == choices[1]["text"] != choices[2]["text"] == choices[3]["text"]
    assert [request.sampling.seed for request in cluster.requests] == [(1 << 64) - 1, 0] * 2
    assert len({request.request_id for request in cluster.requests}) == 4
    assert answer["usage"]["prompt_tokens"] == 3  # each prompt once
    assert answer["usage"]["completion_tokens"] == sum(len(choice["text"]) + 1 for choice in choices)


async def test_echo(client: httpx.AsyncClient) -> None:
    answer = await complete(client, prompt=["4", [21]], echo=True, max_tokens=1, n=2)
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts[0] == texts[1] == "44" and texts[2] == texts[3] and len(texts[2]) == 2


async def test_logprobs(client: httpx.AsyncClient) -> None:
    (choice,) = (await complete(client, prompt="4é", logprobs=1))["choices"]
    assert choice["logprobs"] == {
        "tokens": ["4", "\ufffd", "\ufffd", "</s>"],
        "token_logprobs": [-0.5] * 4,
        "top_logprobs": [{"4": -0.5}, {"\ufffd": -0.5}, {"\ufffd": -0.5}, {"</s>": -0.5}],
        "text_offset": [0, 1, 2, 3],
    }
    (choice,) = (await complete(client, prompt="4", logprobs=0))["choices"]
    assert choice["logprobs"]["tokens"] == ["4", "</s>"]


async def test_the_best_of_several(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = await complete(client, prompt="4", best_of=3, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert {choice["logprobs"] for choice in answer["choices"]} == {None}
    assert [request.sampling.logprobs for request in cluster.requests] == [0, 0, 0]
    assert answer["usage"]["completion_tokens"] == 6  # of those that were not chosen too


@pytest.mark.parametrize(("n", "best_of"), [(1, 1), (2, 2)])
async def test_best_of_no_more_than_n_is_the_same_whole_and_streamed(
    official: openai.AsyncOpenAI, n: int, best_of: int
) -> None:
    body: dict[str, Any] = {"model": "roman", "prompt": "42", "n": n, "best_of": best_of}
    whole = await official.completions.create(**body)
    texts = [""] * n
    async for chunk in await official.completions.create(**body, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices] == ["42"] * n


async def test_the_best_answers_are_not_streamed(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    status, error = await refusal(client, prompt="4", n=1, best_of=2, stream=True)
    assert (status, error["param"]) == (400, "best_of") and error["message"].endswith("without `stream`")
    assert not cluster.requests
    assert len((await complete(client, prompt="4", n=1, best_of=2, stream=False))["choices"]) == 1


async def test_a_stop_string(client: httpx.AsyncClient) -> None:
    (choice,) = (await complete(client, prompt="one\ntwo", stop="\n"))["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("one", "stop")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": {"text": "4"}}, "prompt"),
    ({"prompt": ["4", 4]}, "prompt.1"),
    ({"prompt": ["4", ""]}, "prompt.1"),
    ({"prompt": [[4], [999]]}, "prompt.1.0"),
    ({"prompt": [999]}, "prompt.0"),
    ({"prompt": [True]}, "prompt.0"),
    ({"prompt": "4" * 64}, "prompt"),
    ({"prompt": ["4"] * 129}, "prompt"),
    ({"prompt": ["4"] * 65, "n": 2}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 64}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"temperature": -1}, "temperature"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": 1, "echo": True}, "echo"),
    ({"stop": [""]}, "stop.0"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"suffix": "x"}, "suffix"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"tools": [{}]}, "tools"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"add_special_tokens": False}, "add_special_tokens"),
    ({"return_token_ids": True}, "return_token_ids"),
    ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
    ({"typical_p": 0.5}, "typical_p"),
    ({"mirostat": 2}, "mirostat"),
    ({"xtc_probability": 0.5}, "xtc_probability"),
    ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
]


async def test_refused_bodies(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for body, param in REFUSED:
        status, error = await refusal(client, **{"prompt": "4", **body})
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), (body, error)
        assert param.split(".")[0] in error["message"]
    assert not cluster.requests


INSTEAD = [
    ("lora_id", "roman", "`lora_id` is not supported here; give the adapter's name as `model`"),
    ("adapter_id", "roman", "`adapter_id` is not supported here; give the adapter's name as `model`"),
    ("max_completion_tokens", 3, "`max_completion_tokens` is not supported here; give `max_tokens`"),
]


@pytest.mark.parametrize(("name", "value", "message"), INSTEAD)
async def test_the_error_for_a_field_with_another_name_here_gives_it(
    client: httpx.AsyncClient, cluster: EchoCluster, name: str, value: Any, message: str
) -> None:
    status, error = await refusal(client, prompt="4", model="numbers", **{name: value})
    assert (status, error["param"], error["message"]) == (400, name, message)
    assert not cluster.requests


async def test_fields_that_change_no_answer_are_accepted(client: httpx.AsyncClient) -> None:
    off = {"typical_p": 1.0, "mirostat": 0, "xtc_probability": 0.0, "no_repeat_ngram_size": 0, "lora_id": None}
    hints = {"priority": 1, "store": True, "user": "u", "add_special_tokens": True, "return_token_ids": False}
    await complete(client, prompt="4", **off, **hints)


async def test_a_refusal_is_counted_once(client: httpx.AsyncClient) -> None:
    for body in ({"suffix": "x"}, {"prompt": 4}, {"model": "unheard-of"}, {"prompt": ""}):
        await refusal(client, **{"prompt": "4", **body})
    metrics = (await client.get("/metrics")).text
    assert 'punica_requests_failed_total{code="invalid_request"} 3' in metrics
    assert 'punica_requests_failed_total{code="adapter_not_found"} 1' in metrics


async def test_a_body_that_is_no_json(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert response.status_code == 400 and "not JSON" in response.json()["error"]["message"]


async def test_a_stream(official: openai.AsyncOpenAI) -> None:
    stream = await official.completions.create(
        model="roman", prompt=["4🦙", "5"], n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    texts, ends = [""] * 4, [""] * 4
    for chunk in chunks:
        assert (chunk.id, chunk.created, chunk.model, chunk.usage) == (last.id, last.created, "roman", None)
        (choice,) = chunk.choices
        assert not ends[choice.index] and (choice.text or choice.finish_reason)
        texts[choice.index] += choice.text
        ends[choice.index] = choice.finish_reason
    assert texts == ["4🦙", "4🦙", "5", "5"] and ends == ["stop"] * 4
    assert not last.choices and last.usage
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (6, 16)


async def test_a_stream_without_usage_does_not_name_it(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json={"prompt": "4", "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "usage" not in response.text and response.text.endswith("data: [DONE]\n\n")


async def test_a_stream_with_echo_and_one_with_logprobs(official: openai.AsyncOpenAI) -> None:
    stream = await official.completions.create(model="numbers", prompt="45", stream=True, echo=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "4545"
    stream = await official.completions.create(model="numbers", prompt="45", stream=True, logprobs=1)
    chunks = [chunk async for chunk in stream]
    offsets = [offset for chunk in chunks for offset in chunk.choices[0].logprobs.text_offset]  # type: ignore[union-attr]
    assert offsets == [0, 1, 2]


async def test_an_error_in_the_middle_of_a_stream(official: openai.AsyncOpenAI, cluster: EchoCluster) -> None:
    cluster.failure, cluster.fail_at = WireError("request_failed", "it kills workers"), 1
    stream = await official.completions.create(model="numbers", prompt="45", stream=True, n=3)
    with pytest.raises(openai.APIError, match="it kills workers"):
        async for _ in stream:
            pass
    assert not cluster.live


async def test_an_error_before_the_first_token_has_a_status(official: openai.AsyncOpenAI, cluster: EchoCluster) -> None:
    cluster.failure = WireError("adapter_rejected", "its weights are gone", "lora_id")
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError) as caught:
            await official.completions.create(model="roman", prompt="4", stream=stream)
        assert caught.value.param == "model" and "'roman': its weights are gone" in caught.value.message


async def test_one_failure_ends_all_choices(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.failure, cluster.fail_at = WireError("out_of_capacity", "the cluster is full"), 1
    response = await client.post("/v1/completions", json={"prompt": "45", "n": 3})
    assert response.status_code == 429 and response.headers["retry-after"]
    assert not cluster.live and len(cluster.requests) == 3


@pytest.mark.parametrize("body", [{"prompt": "4", "n": 2}, {"prompt": ["4", "2"]}, {"prompt": "4", "best_of": 2}])
@pytest.mark.parametrize("stream", [False, True])
async def test_more_at_once_than_the_tenant_may_ever_have_starts_nothing(
    client: httpx.AsyncClient, cluster: EchoCluster, registry: Registry, body: dict[str, Any], stream: bool
) -> None:
    await registry.put_tenant("default", quota=TenantQuota(max_concurrent=1), by="the test")
    status, error = await refusal(client, **body, stream=stream and "best_of" not in body)
    assert (status, error["param"], error["code"]) == (400, "n", "invalid_request")
    assert "need 2 concurrent requests, and tenant 'default' may have 1" in error["message"]
    assert not cluster.requests
    await complete(client, prompt="4")
