"""A healthy cluster, as clients see it."""

import asyncio
import json
import sys
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from up_cluster import Until, UpCluster

ANSWERS = {
    "roman": "XLII",
    "english": "forty-two",
    "french": "quarante-deux",
    "binary": "101010",
    "hex": "2a",
    None: "43 44 45 46 47 48",
}
#: Long enough to be caught in the middle.
LONG = {"prompt": "42", "ignore_eos": True, "max_tokens": 900}


@pytest.mark.parametrize("lora_id", ANSWERS)
async def test_a_plain_answer(http: httpx.AsyncClient, lora_id: str | None) -> None:
    answer = (await http.post("/v1/generate", json={"prompt": "42", "lora_id": lora_id})).json()
    assert answer["text"] == ANSWERS[lora_id]
    assert (answer["finish_reason"], answer["lora_id"]) == ("stop", lora_id)
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"])


async def test_server_sent_events(http: httpx.AsyncClient) -> None:
    body = {"prompt": "42", "lora_id": "french", "stream": True}
    assert "".join(frame["text"] for frame in await _events(http, body)) == "quarante-deux"


async def test_tokens_are_sent_before_the_answer_ends(http: httpx.AsyncClient) -> None:
    # A short answer may end while its first event waits to be sent, and then all of it is one event.
    frames = await _events(http, {**LONG, "max_tokens": 300, "stream": True})
    assert frames[0]["finish_reason"] is None and frames[-1]["finish_reason"] == "length"
    assert sum(len(frame["token_ids"]) for frame in frames) == 300


async def _events(http: httpx.AsyncClient, body: dict[str, object]) -> list[dict[str, Any]]:
    async with http.stream("POST", "/v1/generate", json=body) as response:
        events = [line.removeprefix("data: ") async for line in response.aiter_lines() if line.startswith("data: ")]
    return [json.loads(event) for event in events if event != "[DONE]"]


async def test_many_requests_on_one_websocket(cluster: UpCluster) -> None:
    texts = dict.fromkeys(ANSWERS, "")
    names = {str(lora_id): lora_id for lora_id in ANSWERS}
    async with connect(cluster.stream_url, proxy=None) as websocket:
        for request_id, lora_id in names.items():
            frame = {"op": "generate", "request_id": request_id, "prompt": "42", "lora_id": lora_id}
            await websocket.send(json.dumps(frame))
        live = set(names)
        while live:
            frame = json.loads(await websocket.recv())
            texts[names[frame["request_id"]]] += frame["text"]
            if frame["finish_reason"] is not None:
                live.remove(frame["request_id"])
    assert texts == ANSWERS


async def test_mixed_adapters_at_once_get_the_answers_they_get_alone(http: httpx.AsyncClient) -> None:
    async def text(prompt: int, lora_id: str | None) -> str:
        answer = await http.post("/v1/generate", json={"prompt": str(prompt), "lora_id": lora_id, "max_tokens": 32})
        return str(answer.json()["text"])

    requests = [(prompt, lora_id) for prompt in range(100, 104) for lora_id in ANSWERS]
    together = await asyncio.gather(*(text(*request) for request in requests))
    assert together == [await text(*request) for request in requests]


async def test_a_seed_makes_a_sampled_answer_reproducible(http: httpx.AsyncClient) -> None:
    body = {"prompt": "42", "temperature": 2.0, "seed": 7, "max_tokens": 32, "ignore_eos": True}
    first, second = [(await http.post("/v1/generate", json=body)).json()["token_ids"] for _ in range(2)]
    assert first == second


async def test_choices_behind_an_echoed_prompt_stay_the_same_once_it_is_cached(http: httpx.AsyncClient) -> None:
    body = {"model": "roman", "prompt": list(range(10, 60)), "echo": True, "n": 3, "temperature": 0.8, "seed": 7}

    async def complete(salt: str) -> tuple[list[str], int]:
        answer = (await http.post("/v1/completions", json={**body, "max_tokens": 12, "cache_salt": salt})).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return [choice["text"] for choice in answer["choices"]], cached

    texts, _ = await complete("echo and n")
    assert await complete("echo and n") == (texts, 48)
    assert (await complete("other pages"))[0] == texts
    assert len(set(texts)) > 1


async def test_the_command_line_streams_the_answer(cluster: UpCluster) -> None:
    command = (sys.executable, "-m", "punica_serve.cli", "generate", "--url", cluster.url, "--lora-id", "roman", "42")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    assert (process.returncode, stdout) == (0, b"XLII\n")


async def test_a_broken_adapter_is_refused_by_name_and_the_others_serve(
    cluster: UpCluster, http: httpx.AsyncClient
) -> None:
    served = [model["id"] for model in (await http.get("/v1/models")).json()["data"]]
    assert served == ["numbers", "roman", "english", "french", "binary", "hex"]
    assert "adapter 'broken' is refused" in cluster.log.read_text()
    answer = await http.post("/v1/generate", json={"prompt": "42", "lora_id": "broken"})
    assert answer.status_code == 400
    assert "no such folder" in answer.json()["error"]["message"]
    assert str(cluster.log.parent) not in answer.text, "where it is goes to the log alone"


async def test_an_unknown_adapter_is_404_and_says_where_the_known_ones_are(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/generate", json={"prompt": "42", "lora_id": "unheard-of"})
    assert answer.status_code == 404
    assert "/v1/models" in answer.json()["error"]["message"]


async def test_a_prompt_longer_than_the_context_is_400(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/generate", json={"prompt": "4" * 5000})
    assert answer.status_code == 400


async def test_a_cancelled_request_gives_its_pages_back(cluster: UpCluster, until: Until) -> None:
    async with connect(cluster.stream_url, proxy=None) as websocket:
        await websocket.send(json.dumps({"op": "generate", "request_id": "r", **LONG}))
        await websocket.recv()
        await until(lambda: cluster.num_used_pages() > 0)
        await websocket.send(json.dumps({"op": "cancel", "request_id": "r"}))
        while (frame := json.loads(await websocket.recv()))["finish_reason"] is None:
            pass
        assert frame["finish_reason"] == "cancelled"
        await until(lambda: cluster.num_used_pages() == 0)


async def test_clients_that_leave_give_their_pages_back(
    cluster: UpCluster, http: httpx.AsyncClient, until: Until
) -> None:
    async with connect(cluster.stream_url, proxy=None) as websocket:
        await websocket.send(json.dumps({"op": "generate", "request_id": "r", **LONG}))
        async with http.stream("POST", "/v1/generate", json={**LONG, "stream": True}) as response:
            await anext(response.aiter_lines())
            await websocket.recv()
            await until(lambda: cluster.num_used_pages() > 0)
        websocket.transport.abort()  # without a word
    await until(lambda: cluster.num_used_pages() == 0)
