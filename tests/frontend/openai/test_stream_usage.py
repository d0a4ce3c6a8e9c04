"""`stream_options`: what the chunks of a stream tell of its usage."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from echo_cluster import EchoCluster
from waits import DEADLINE_S

CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


async def chunks(client: httpx.AsyncClient, route: str, **body: Any) -> list[dict[str, Any]]:
    answer = await client.post(route, json={"stream": True, "stream_options": CONTINUOUS, **body})
    assert answer.status_code == 200, answer.text
    *lines, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def counts(chunk: dict[str, Any]) -> tuple[int, int, int]:
    usage = chunk["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]


async def test_every_chunk_tells_the_usage_so_far(client: httpx.AsyncClient) -> None:
    *pieces, last = await chunks(client, "/v1/completions", prompt="1234")
    assert len(pieces) > 1 and all(piece["choices"] for piece in pieces)
    generated = [counts(piece)[1] for piece in pieces]
    assert generated == sorted(generated) and generated[0] >= 1
    assert counts(pieces[-1]) == counts(last) == (4, 5, 9) and not last["choices"]


async def test_in_chats_too(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "1"}]
    *pieces, last = await chunks(client, "/v1/chat/completions", messages=messages)
    assert counts(pieces[-1]) == counts(last) == (6, 7, 13)


async def test_a_chunk_tells_that_of_its_own_choice(client: httpx.AsyncClient) -> None:
    *pieces, last = await chunks(client, "/v1/completions", prompt=["1", "234"], n=2)
    at_end = {piece["choices"][0]["index"]: counts(piece) for piece in pieces}
    assert at_end == {0: (1, 2, 3), 1: (1, 2, 3), 2: (3, 4, 7), 3: (3, 4, 7)}
    assert counts(last)[1] == 12


async def test_an_echo_is_no_generated_token(client: httpx.AsyncClient) -> None:
    first, *_ = await chunks(client, "/v1/completions", prompt="1234", echo=True)
    assert first["choices"][0]["text"] == "1234" and counts(first) == (4, 0, 4)


async def test_on_a_websocket(address: str) -> None:
    request = {"op": "generate", "request_id": "a", "format": "openai", "prompt": "1234", "stream_options": CONTINUOUS}
    frames: list[dict[str, Any]] = [{"done": False}]
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        while not frames[-1]["done"]:
            frames.append(json.loads(await socket.recv()))
    assert [counts(frame["chunk"]) for frame in frames[-2:]] == [(4, 5, 9)] * 2


@pytest.mark.parametrize("options", [{"include_usage": True}, {**CONTINUOUS, "continuous_usage_stats": False}])
async def test_else_only_the_last_chunk_does(client: httpx.AsyncClient, options: dict[str, Any]) -> None:
    *pieces, last = await chunks(client, "/v1/completions", prompt="1234", stream_options=options)
    assert {piece["usage"] for piece in pieces} == {None} and counts(last) == (4, 5, 9)


async def test_it_needs_the_usage_to_be_asked_for(client: httpx.AsyncClient, cluster: EchoCluster) -> None:
    for options in ({"continuous_usage_stats": True}, {**CONTINUOUS, "include_usage": False}):
        answer = await client.post("/v1/completions", json={"prompt": "4", "stream": True, "stream_options": options})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "stream_options.continuous_usage_stats")
        assert "include_usage" in error["message"]
    assert not cluster.requests
