"""An answer's usage is what is billed, however many choices and prompts it has."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from punica_frontend.dependencies import AppDependencies
from waits import DEADLINE_S

MESSAGES = [{"role": "user", "content": "42"}]
SAMPLED = {"temperature": 1.0, "max_tokens": 4}


def billed(dependencies: AppDependencies) -> dict[str, int]:
    rows = dependencies.meter.take()
    prompt, completion = sum(row.num_prompt_tokens for row in rows), sum(row.num_generated_tokens for row in rows)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


@pytest.mark.parametrize(
    ("path", "body", "num_prompt_tokens"),
    [
        ("/v1/completions", {"prompt": "4242"}, 4),
        ("/v1/completions", {"prompt": "4242", "n": 5}, 4),
        ("/v1/completions", {"prompt": "4242", "n": 2, "best_of": 5}, 4),
        ("/v1/completions", {"prompt": ["42", "123"], "n": 3}, 5),
        ("/v1/completions", {"prompt": ["42", "42"]}, 4),
        ("/v1/chat/completions", {"messages": MESSAGES, "n": 4}, 7),
    ],
)
async def test_an_answer_tells_what_is_billed(
    client: httpx.AsyncClient, dependencies: AppDependencies, path: str, body: dict[str, Any], num_prompt_tokens: int
) -> None:
    usage = (await client.post(path, json={**SAMPLED, **body})).json()["usage"]
    assert usage["prompt_tokens"] == num_prompt_tokens
    assert billed(dependencies) == usage


async def test_so_does_a_stream(client: httpx.AsyncClient, dependencies: AppDependencies) -> None:
    body = {"prompt": ["42", "123"], "n": 3, "stream": True, "stream_options": {"include_usage": True}}
    response = await client.post("/v1/completions", json=body)
    *_, last, _done = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    usage = json.loads(last)["usage"]
    assert usage["prompt_tokens"] == 5
    assert billed(dependencies) == usage


async def test_so_does_a_websocket(address: str, dependencies: AppDependencies) -> None:
    request = {"op": "generate", "request_id": "a", "format": "openai", "prompt": "4242", "n": 3, "max_tokens": 3}
    frames: list[dict[str, Any]] = [{"done": False}]
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps({**request, "stream_options": {"include_usage": True}}))
        while not frames[-1]["done"]:
            frames.append(json.loads(await socket.recv()))
    usage = frames[-1]["chunk"]["usage"]
    assert usage["prompt_tokens"] == 4
    assert billed(dependencies) == usage


async def test_the_best_of_loraxs_counts_its_prompt_once(
    client: httpx.AsyncClient, dependencies: AppDependencies
) -> None:
    parameters = {"best_of": 3, "do_sample": True, "max_new_tokens": 3}
    response = await client.post("/generate", json={"inputs": "4242", "parameters": parameters})
    assert response.status_code == 200
    assert billed(dependencies)["prompt_tokens"] == 4
