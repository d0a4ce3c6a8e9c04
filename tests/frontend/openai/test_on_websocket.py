import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import connect

from waits import DEADLINE_S


async def test_a_chat_comes_in_chunks(address: str) -> None:
    messages = [{"role": "user", "content": "42"}]
    request = {"op": "generate", "request_id": "a", "format": "openai", "messages": messages, "max_tokens": 3}
    frames: list[dict[str, Any]] = [{"done": False}]
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        while not frames[-1]["done"]:
            frames.append(json.loads(await socket.recv()))
    chunks = [frame["chunk"] for frame in frames[1:]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_an_adapter_by_the_native_name_is_refused_by_that_name(address: str) -> None:
    request = {"op": "generate", "request_id": "a", "format": "openai", "prompt": "42", "lora_id": "roman"}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        await socket.send(json.dumps(request))
        frame = json.loads(await socket.recv())
    assert frame["done"] and frame["error"]["param"] == "lora_id"
    assert frame["error"]["message"].startswith("`lora_id` is not supported here")


@pytest.mark.parametrize("text", [{"prompt": "42"}, {"messages": [{"role": "user", "content": "42"}]}])
async def test_an_answer_that_is_not_streamed_is_refused(address: str, text: dict[str, Any]) -> None:
    frames: list[dict[str, Any]] = []
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        for stream in (False, True, None):
            request = {"op": "generate", "request_id": f"{stream}", "format": "openai", "max_tokens": 1, **text}
            await socket.send(json.dumps(request | {"stream": stream}))
        while sum(frame["done"] for frame in frames) < 3:
            frames.append(json.loads(await socket.recv()))
    errors = {frame["request_id"]: frame["error"] for frame in frames if frame["error"]}
    assert set(errors) == {"False"} and errors["False"]["param"] == "stream"
    assert errors["False"]["message"] == (
        "`stream`: Answers on a websocket are always streamed; leave it out, or use HTTP, got false"
    )


async def test_an_echo_of_ids_that_are_no_tokens_ends_one_request_alone(address: str) -> None:
    good = {"op": "generate", "request_id": "good", "input_ids": [21], "max_tokens": 3}
    bad = {"op": "generate", "request_id": "bad", "format": "openai", "prompt": [-1], "echo": True}
    frames: dict[str, dict[str, Any]] = {}
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket, asyncio.timeout(DEADLINE_S):
        for request in (bad, good):
            await socket.send(json.dumps(request))
        while not (frames.get("bad", {}).get("done") and frames.get("good", {}).get("finish_reason")):
            frame = json.loads(await socket.recv())
            frames[frame["request_id"]] = frame
    assert frames["bad"]["error"]["param"] == "prompt.0"
    assert frames["good"]["finish_reason"] in ("length", "stop")
