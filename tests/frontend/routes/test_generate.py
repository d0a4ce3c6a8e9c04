import asyncio
import json
from typing import Any

import httpx
import pytest

from echo_cluster import EchoCluster
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import Limits, WireError
from punica_serve.text.tokenizer import Tokenizer
from waits import DEADLINE_S, until


async def generate(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/v1/generate", json=body)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a finished stream, without the end mark."""
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


async def test_an_answer(client: httpx.AsyncClient, cluster: EchoCluster, tokenizer: Tokenizer) -> None:
    response = await generate(client, prompt="42é", lora_id="roman")
    assert response.status_code == 200
    answer = response.json()
    assert answer.pop("request_id") == cluster.requests[0].request_id
    assert answer == {
        "lora_id": "roman",
        "text": "42é",
        "token_ids": [*tokenizer.encode("42é"), 0],
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
    }
    assert cluster.digests == ["d1"]


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
        "seed": (1 << 64) - 1,
        "stop_token_ids": [7, 8],
        "ignore_eos": True,
        "logprobs": 2,
    }
    response = await generate(client, input_ids=[5, 6], stop=["x", "y"], **sampling)
    assert response.status_code == 200, response.text
    request = cluster.requests[0]
    assert request.prompt_ids == (5, 6) and request.adapter is None
    assert {name: getattr(request.sampling, name) for name in sampling} == {**sampling, "stop_token_ids": (7, 8)}


async def test_logprobs(client: httpx.AsyncClient) -> None:
    answer = (await generate(client, input_ids=[5], logprobs=1)).json()
    assert answer["logprobs"][0] == {"token_id": 5, "logprob": -0.5, "top": [{"token_id": 5, "logprob": -0.5}]}
    assert len(answer["logprobs"]) == len(answer["token_ids"])


async def test_a_stop_string_cancels_the_request(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    answer = (await generate(client, prompt="one\ntwo", stop="\n")).json()
    assert (answer["text"], answer["finish_reason"]) == ("one", "stop")
    assert cluster.cancelled == [answer["request_id"]]


async def test_events(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    frames = events(await generate(client, prompt="4🦙", stream=True))
    assert "".join(frame["text"] for frame in frames) == "4🦙"
    assert [frame["index"] for frame in frames] == list(range(6))
    assert [frame["finish_reason"] for frame in frames] == [None] * 5 + ["stop"]
    assert frames[-1]["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    assert {frame["request_id"] for frame in frames} == {cluster.requests[0].request_id}


BAD_BODIES: list[tuple[dict[str, Any], int, str]] = [
    ({}, 400, "prompt"),
    ({"prompt": ""}, 400, "prompt"),
    ({"input_ids": []}, 400, "input_ids"),
    ({"prompt": "4", "input_ids": [4]}, 400, "prompt"),
    ({"prompt": "4" * 64}, 400, "prompt"),
    ({"input_ids": [4] * 64}, 400, "input_ids"),
    ({"input_ids": [4, 257]}, 400, "input_ids.1"),
    ({"input_ids": [-1]}, 400, "input_ids.0"),
    ({"input_ids": [1 << 80]}, 400, "input_ids.0"),
    ({"input_ids": [257] * 64}, 400, "input_ids"),
    ({"prompt": "4", "stop_token_ids": [300]}, 400, "stop_token_ids.0"),
    ({"prompt": "4", "max_tokens": 64}, 400, "max_tokens"),
    ({"prompt": "4", "max_tokens": 3, "min_tokens": 4}, 400, "min_tokens"),
    ({"prompt": "4", "max_tokens": 0}, 422, "max_tokens"),
    ({"prompt": "4", "max_tokens": 1.5}, 422, "max_tokens"),
    ({"prompt": "4", "max_tokens": "1"}, 422, "max_tokens"),
    ({"prompt": "4", "max_tokens": True}, 422, "max_tokens"),
    ({"prompt": 42}, 422, "prompt"),
    ({"prompt": ["4"]}, 422, "prompt"),
    ({"prompt": "\ud800"}, 422, "prompt"),
    ({"prompt": "4", "stop": ["\ud800"]}, 422, "stop.0"),
    ({"input_ids": ["4"]}, 422, "input_ids.0"),
    ({"prompt": "4", "temperature": -0.1}, 422, "temperature"),
    ({"prompt": "4", "temperature": "hot"}, 422, "temperature"),
    ({"prompt": "4", "temperature": float("nan")}, 422, "temperature"),
    ({"prompt": "4", "temperature": float("inf")}, 422, "temperature"),
    ({"prompt": "4", "top_p": 0}, 422, "top_p"),
    ({"prompt": "4", "top_p": 1.1}, 422, "top_p"),
    ({"prompt": "4", "top_k": -1}, 422, "top_k"),
    ({"prompt": "4", "min_p": 2}, 422, "min_p"),
    ({"prompt": "4", "repetition_penalty": 0}, 422, "repetition_penalty"),
    ({"prompt": "4", "presence_penalty": 3}, 422, "presence_penalty"),
    ({"prompt": "4", "seed": 1 << 64}, 422, "seed"),
    ({"prompt": "4", "seed": -1}, 422, "seed"),
    ({"prompt": "4", "stop": ""}, 422, "stop.0"),
    ({"prompt": "4", "stop": ["x"] * 17}, 422, "stop"),
    ({"prompt": "4", "stop": 5}, 422, "stop"),
    ({"prompt": "4", "logprobs": 21}, 422, "logprobs"),
    ({"prompt": "4", "logprobs": True}, 422, "logprobs"),
    ({"prompt": "4", "stream": "yes"}, 422, "stream"),
    ({"prompt": "4", "lora_id": 7}, 422, "lora_id"),
    ({"prompt": "4", "max_token": 7}, 422, "max_token"),
    ({"prompt": "4", "lora_id": "nope"}, 404, "lora_id"),
    ({"prompt": "4", "lora_id": "broken"}, 400, "lora_id"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_input_names_the_field(client: httpx.AsyncClient, cluster: EchoCluster, stream: bool) -> None:
    for body, status, param in BAD_BODIES:
        content = json.dumps({"stream": stream, **body})
        response = await client.post("/v1/generate", content=content, headers={"content-type": "application/json"})
        assert response.status_code == status, (body, response.text)
        error = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["param"] == param, body
        assert param.split(".")[0] in error["message"] or status == 404, body
        assert cluster.requests == [], body


async def test_token_ids_as_the_prompt_are_sent_to_their_own_field(client: httpx.AsyncClient) -> None:
    response = await generate(client, prompt=[5, 6])
    message = "`prompt`: Input should be a text; give token ids as `input_ids`, got [5, 6]"
    assert (response.status_code, response.json()["error"]["message"]) == (422, message)
    assert (await generate(client, input_ids=[5, 6])).status_code == 200


@pytest.mark.parametrize(
    ("path", "field", "status"),
    [
        ("/v1/generate", "stop", 422),
        ("/v1/generate", "unknown", 422),
        ("/v1/completions", "unknown", 400),
        ("/v1/completions", "user", 200),
    ],
)
async def test_deep_nesting_is_no_bug(client: httpx.AsyncClient, path: str, field: str, status: int) -> None:
    depth = 600  # the parser itself refuses some 900, less what is on the stack
    content = f'{{"prompt": "4", "{field}": {"[" * depth}{"]" * depth}}}'
    response = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, response.text


@pytest.mark.parametrize(("path", "status"), [("/v1/generate", 422), ("/v1/completions", 400)])
async def test_a_flood_of_fields_is_refused(client: httpx.AsyncClient, path: str, status: int) -> None:
    response = await client.post(path, json={"prompt": "4", **{f"a{number}": 1 for number in range(300)}})
    assert response.status_code == status
    assert "at most 256 fields" in response.json()["error"]["message"]


async def test_a_request_that_no_kvcache_holds(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.limits = Limits(1, 32)
    assert "KvCache" in (await generate(client, prompt="4" * 40)).json()["error"]["message"]
    assert (await generate(client, prompt="4" * 30)).status_code == 200


async def test_an_unknown_adapter_says_where_the_known_ones_are(client: httpx.AsyncClient) -> None:
    error = (await generate(client, prompt="4", lora_id="nope")).json()["error"]
    assert "GET /v1/models" in error["message"]
    assert (error["type"], error["code"]) == ("not_found_error", "adapter_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_errors_before_the_first_token_have_a_status(
    client: httpx.AsyncClient, cluster: EchoCluster, stream: bool
) -> None:
    cluster.failure = ClusterUnavailable("gone")
    response = await generate(client, prompt="42", stream=stream)
    assert response.status_code == 503 and response.headers["retry-after"]
    assert response.json()["error"]["code"] == "cluster_unavailable"
    error = WireError("out_of_capacity", "the queue is full")
    cluster.failure = error
    assert (await generate(client, prompt="42", stream=stream)).status_code == 429
    cluster.failure = WireError("from_the_future", "so it was")
    response = await generate(client, prompt="42", stream=stream)
    assert (response.status_code, response.json()["error"]["message"]) == (500, "so it was")
    cluster.failure = RuntimeError("secret")
    response = await generate(client, prompt="42", stream=stream)
    assert response.status_code == 500 and "secret" not in response.text


async def test_a_later_error_is_an_event(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    cluster.fail_at = 1
    cluster.failure = WireError("request_failed", "gave up")
    first, last = events(await generate(client, prompt="42", stream=True))
    assert first["text"] == "4"
    assert (last["error"]["message"], last["error"]["type"]) == ("gave up", "server_error")
    assert (last["finish_reason"], last["index"], last["usage"]) == ("error", 1, None)


async def test_an_error_behind_tokens_that_no_reader_was_woken_for_has_their_number(
    address: str, cluster: EchoCluster
) -> None:
    cluster.fail_at = 4
    cluster.failure = WireError("request_failed", "gave up")
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S) as client:
        *frames, last = events(await generate(client, prompt="longest", stream=True))
    assert [(frame["index"], frame["text"]) for frame in frames] == list(enumerate("long"))
    assert (last["index"], last["finish_reason"], last["error"]["message"]) == (4, "error", "gave up")
    assert last["request_id"] == frames[0]["request_id"] == cluster.requests[0].request_id


async def test_a_stop_string_ends_a_stream_whose_reader_was_not_woken(address: str, cluster: EchoCluster) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S) as client:
        *frames, last = events(await generate(client, prompt="longest", stop="es", stream=True))
    assert "".join(frame["text"] for frame in frames) == "long"
    assert (last["index"], last["text"], last["finish_reason"]) == (5, "", "stop")
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert cluster.cancelled == [last["request_id"]]


async def test_a_later_bug_is_an_event_and_a_line_in_the_log(
    client: httpx.AsyncClient, cluster: EchoCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.fail_at = 1
    cluster.failure = RuntimeError("secret")
    first, last = events(await generate(client, prompt="42", stream=True))
    assert first["text"] == "4"
    assert last["error"]["message"] == "internal error; see the frontend's log"
    assert "secret" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("pause_at", [0, 1])
async def test_a_client_that_leaves_is_cancelled(
    address: str, cluster: EchoCluster, stream: bool, pause_at: int
) -> None:
    cluster.pause_at = pause_at
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S) as client:
        leaving = asyncio.create_task(generate(client, prompt="42", stream=stream))
        await until(lambda: cluster.live and cluster.num_tokens == pause_at)
        leaving.cancel()
        await asyncio.wait([leaving])
    await until(lambda: not cluster.live)
    assert cluster.cancelled == [cluster.requests[0].request_id]


async def test_events_arrive_while_tokens_are_generated(address: str, cluster: EchoCluster) -> None:
    cluster.pause_at = 2
    async with (
        httpx.AsyncClient(base_url=f"http://{address}", timeout=DEADLINE_S) as client,
        client.stream("POST", "/v1/generate", json={"prompt": "42", "stream": True}) as response,
    ):
        lines = response.aiter_lines()
        texts = [json.loads((await anext(lines)).removeprefix("data: "))["text"], await anext(lines)]
        texts.append(json.loads((await anext(lines)).removeprefix("data: "))["text"])
        assert texts == ["4", "", "2"]
        cluster.resumed.set()
        rest = [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
