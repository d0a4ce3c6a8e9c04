import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from echo_cluster import EchoCluster
from punica_frontend.app import max_body_bytes
from punica_frontend.dependencies import AppDependencies
from punica_frontend.http.uvicorn_server import EmbeddedServer
from punica_serve.protocol import WireError
from waits import DEADLINE_S, until


@pytest.fixture
async def socket(address: str) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        yield socket


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        frame: dict[str, Any] = json.loads(await socket.recv())
    return frame


async def frames_until_end(socket: ClientConnection, num_requests: int) -> dict[str, list[dict[str, Any]]]:
    """Frames by request, until so many have ended."""
    frames: dict[str, list[dict[str, Any]]] = defaultdict(list)
    while sum(bool(mine[-1]["finish_reason"]) for mine in frames.values()) < num_requests:
        frame = await receive(socket)
        frames[frame["request_id"]].append(frame)
    return frames


async def test_one_request(socket: ClientConnection) -> None:
    await send(socket, op="generate", request_id="a", prompt="7")
    first = await receive(socket)
    assert first == {
        "request_id": "a",
        "index": 0,
        "token_ids": first["token_ids"],
        "text": "7",
        "finish_reason": None,
        "usage": None,
        "error": None,
    }
    last = await receive(socket)
    assert (last["index"], last["token_ids"], last["finish_reason"]) == (1, [0], "stop")
    assert last["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


async def test_many_requests_share_the_socket(socket: ClientConnection) -> None:
    prompts = {f"r{i}": f"{i}🦙" for i in range(200)}
    for request_id, prompt in prompts.items():
        await send(socket, op="generate", request_id=request_id, prompt=prompt, lora_id="roman")
    frames = await frames_until_end(socket, len(prompts))
    assert {name: "".join(frame["text"] for frame in mine) for name, mine in frames.items()} == prompts
    for mine in frames.values():
        lengths = [len(frame["token_ids"]) for frame in mine]
        assert [frame["index"] for frame in mine] == [sum(lengths[:i]) for i in range(len(mine))]


async def test_cancel(socket: ClientConnection, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    await send(socket, op="generate", request_id="a", prompt="42")
    await send(socket, op="generate", request_id="b", prompt="42")
    assert {(await receive(socket))["request_id"] for _ in range(2)} == {"a", "b"}
    await send(socket, op="cancel", request_id="a")
    frame = await receive(socket)
    assert (frame["request_id"], frame["index"], frame["finish_reason"]) == ("a", 1, "cancelled")
    assert frame["usage"] == {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert len(cluster.cancelled) == 1
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["b"]] == ["2", ""]


async def test_a_cancel_of_what_has_finished_is_ignored_and_names_can_be_used_again(socket: ClientConnection) -> None:
    for _ in range(2):
        await send(socket, op="generate", request_id="a", prompt="7")
        await frames_until_end(socket, 1)
        await send(socket, op="cancel", request_id="a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"op": "explode", "prompt": "4"}', "`op`: Input should be 'generate', 'cancel' or 'ping', got 'explode'"),
        ('{"prompt": "4"}', "`op`: Input should be 'generate', 'cancel' or 'ping'"),
        ('{"op":\n "ping",}', "the frame is not JSON: trailing comma at line 2 column 9"),
    ],
)
async def test_a_frame_that_is_for_nothing_hears_what_frames_are_for(
    socket: ClientConnection, content: str, message: str
) -> None:
    await socket.send(content)
    assert (await receive(socket))["error"]["message"] == message


MALFORMED: list[tuple[str | bytes, str | None, str | None]] = [
    ("", None, None),
    ("{", None, None),
    ("[]", None, None),
    ("null", None, None),
    ("[" * 100_000, None, None),
    (b"\xff\xfe", None, None),
    ('{"request_id": "x"}', "x", "op"),
    ('{"op": "explode", "request_id": "x"}', "x", "op"),
    ('{"op": "generate", "prompt": "4"}', None, "request_id"),
    ('{"op": "generate", "request_id": 5, "prompt": "4"}', None, "request_id"),
    ('{"op": "generate", "request_id": "", "prompt": "4"}', "", "request_id"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "max_tokens": 0}', "x", "max_tokens"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "temperature": NaN}', "x", "temperature"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "temperature": 1e999}', "x", "temperature"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "top": 1}', "x", "top"),
    ('{"op": "generate", "request_id": "x", "prompt": "\\ud800"}', "x", "prompt"),
    ('{"op": "generate", "request_id": "\\ud800", "prompt": "4"}', None, "request_id"),
    ('{"op": "generate", "request_id": "x", "prompt": ""}', "x", "prompt"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "lora_id": "nope"}', "x", "lora_id"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "format": "xx"}', "x", "format"),
    ('{"op": "cancel", "request_id": "x", "why": "so"}', "x", "why"),
    ('{"op": "cancel", "requestid": "x"}', None, "requestid"),
    ('{"op": "ping", "nonce": 7}', None, "nonce"),
    ('{"op": "ping", "nonce": "\\ud800"}', None, "nonce"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "stop": ["\\ud800"]}', "x", "stop.0"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "lora_id": "\\ud800"}', "x", "lora_id"),
    ('{"op": "\\ud800", "request_id": "x"}', "x", "op"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "\\ud800": 1}', "x", None),
    (f'{{"op": "generate", "request_id": "x", "prompt": "4", "deep": {"[" * 150}{"]" * 150}}}', "x", "deep"),
    (f'{{"op": "generate", "request_id": "x", "prompt": "4", "deep": {"[" * 600}{"]" * 600}}}', "x", "deep"),
]


async def test_the_error_for_a_misspelt_format_names_all_formats(socket: ClientConnection) -> None:
    await send(socket, op="generate", request_id="x", prompt="4", format="xx")
    message = (await receive(socket))["error"]["message"]
    assert message == "`format`: Input should be 'native' or 'openai', got 'xx'"


async def test_malformed_frames_affect_no_other_request(socket: ClientConnection, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    await send(socket, op="generate", request_id="good", prompt="42")
    assert (await receive(socket))["text"] == "4"
    for content, request_id, param in MALFORMED:
        await socket.send(content)
        frame = await receive(socket)
        assert (frame["request_id"], frame["finish_reason"]) == (request_id, "error"), content
        assert (frame["error"]["param"], frame["error"]["message"] != "") == (param, True), content
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["good"]] == ["2", ""]


@pytest.mark.parametrize("content", ["[]", "4", "null", '"generate"'])
async def test_a_frame_that_is_no_object_is_said_to_be_none(socket: ClientConnection, content: str) -> None:
    await socket.send(content)
    assert "must be a JSON object" in (await receive(socket))["error"]["message"]


async def test_refused_frames_are_counted(socket: ClientConnection, app: FastAPI) -> None:
    for content in ("[]", '{"op": "generate", "request_id": "x", "prompt": "4", "lora_id": "nope"}'):
        await socket.send(content)
        await receive(socket)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://frontend") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    for outcome in ("invalid_request", "adapter_not_found"):
        assert f'punica_requests_failed_total{{code="{outcome}"}} 1' in lines


async def test_a_long_frame_of_mistakes_is_one_error(socket: ClientConnection) -> None:
    await socket.send('{"op": "generate", "request_id": "x", "input_ids": [' + "[]," * 340_000 + "[]]}")
    frame = await receive(socket)
    assert (frame["request_id"], frame["error"]["param"]) == ("x", "input_ids.0")
    assert "more)" not in frame["error"]["message"]


async def test_a_frame_that_is_too_long_affects_no_other_request(
    socket: ClientConnection, cluster: EchoCluster, dependencies: AppDependencies
) -> None:
    max_bytes = max_body_bytes(dependencies.model, dependencies.config.engine)
    cluster.pause_at = 1
    await send(socket, op="generate", request_id="good", prompt="42")
    assert (await receive(socket))["text"] == "4"
    for content in ("é" * (max_bytes // 2 + 1), b"x" * (max_bytes + 1)):
        await socket.send(content)
        frame = await receive(socket)
        assert (frame["request_id"], frame["finish_reason"]) == (None, "error")
        assert f"{max_bytes} is the limit" in frame["error"]["message"]
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["good"]] == ["2", ""]


async def test_a_frame_that_is_far_too_long_closes_the_socket(
    socket: ClientConnection, dependencies: AppDependencies
) -> None:
    await socket.send("x" * (2 * max_body_bytes(dependencies.model, dependencies.config.engine) + 1))
    with pytest.raises(ConnectionClosedError) as closed:
        await receive(socket)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_a_name_that_is_taken(socket: ClientConnection, cluster: EchoCluster) -> None:
    cluster.pause_at = 0
    await send(socket, op="generate", request_id="a", prompt="7")
    await send(socket, op="generate", request_id="a", prompt="8")
    frame = await receive(socket)
    assert (frame["request_id"], frame["finish_reason"], frame["error"]["param"]) == ("a", None, "request_id")
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["a"]] == ["7", ""]


def openai(request_id: str, **fields: Any) -> dict[str, Any]:
    return {"op": "generate", "format": "openai", "request_id": request_id, **fields}


async def chunk_frames(socket: ClientConnection) -> list[dict[str, Any]]:
    """Returns the frames of the only request, until it is done."""
    frames = [await receive(socket)]
    while not frames[-1]["done"]:
        frames.append(await receive(socket))
    return frames


async def test_completions_in_openais_chunks(socket: ClientConnection) -> None:
    await send(socket, **openai("a", model="roman", prompt="42", stream_options={"include_usage": True}))
    frames = await chunk_frames(socket)
    chunks = [frame["chunk"] for frame in frames]
    assert {(frame["request_id"], frame["error"]) for frame in frames} == {("a", None)}
    assert {(chunk["object"], chunk["model"], chunk["id"]) for chunk in chunks} == {
        ("text_completion", "roman", chunks[0]["id"])
    }
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "42"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, "stop"]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 5
    assert [frame["done"] for frame in frames] == [False, False, False, True]


async def test_choices_of_one_request_end_together(socket: ClientConnection, cluster: EchoCluster) -> None:
    await send(socket, **openai("a", prompt=["4", "5"], n=2))
    texts = dict.fromkeys(range(4), "")
    for frame in await chunk_frames(socket):
        (choice,) = frame["chunk"]["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == {0: "4", 1: "4", 2: "5", 3: "5"}
    assert not cluster.live and not cluster.cancelled


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "4", "model": "nope"}, "model"),
        ({"prompt": "4", "tools": [{}]}, "tools"),
        ({"prompt": "4", "n": 1, "best_of": 2}, "best_of"),
        ({"prompt": "4", "max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({}, "prompt"),
    ],
)
async def test_openais_requests_are_refused_in_openais_words(
    socket: ClientConnection, fields: dict[str, Any], param: str
) -> None:
    await send(socket, **openai("a", **fields))
    frame = await receive(socket)
    assert (frame["request_id"], frame["chunk"], frame["done"]) == ("a", None, True)
    assert frame["error"]["param"] == param


async def test_an_openai_request_fails_and_is_cancelled_as_a_whole(
    socket: ClientConnection, cluster: EchoCluster
) -> None:
    cluster.pause_at = 1
    await send(socket, **openai("a", prompt="42", n=3))
    for _ in range(3):
        assert (await receive(socket))["done"] is False
    await send(socket, **openai("a", prompt="5"))
    refusal = await receive(socket)
    assert (refusal["error"]["param"], refusal["done"]) == ("request_id", False)
    await send(socket, op="cancel", request_id="a")
    assert await receive(socket) == {"request_id": "a", "chunk": None, "error": None, "done": True}
    assert len(cluster.cancelled) == 3
    cluster.fail_at, cluster.failure = 1, WireError("request_failed", "`lora_id`: gave up", "lora_id")
    cluster.pause_at = None
    await send(socket, **openai("b", prompt="42", model="roman"))
    last = (await chunk_frames(socket))[-1]
    assert last["error"]["param"] == "model" and "gave up" in last["error"]["message"]


async def test_a_ping_is_answered_between_the_frames_of_requests(
    socket: ClientConnection, cluster: EchoCluster
) -> None:
    cluster.pause_at = 1
    await send(socket, op="generate", request_id="a", prompt="42")
    assert (await receive(socket))["text"] == "4"
    await send(socket, op="ping", nonce="🦙")
    assert await receive(socket) == {"op": "pong", "nonce": "🦙"}
    await send(socket, op="ping")
    assert await receive(socket) == {"op": "pong", "nonce": None}
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["a"]] == ["2", ""]


async def test_too_many_live_requests(
    socket: ClientConnection, cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("punica_frontend.websocket.websocket_session.MAX_LIVE", 1)
    cluster.pause_at = 0
    await send(socket, op="generate", request_id="a", prompt="7")
    await send(socket, op="generate", request_id="b", prompt="7")
    frame = await receive(socket)
    assert (frame["request_id"], frame["finish_reason"]) == ("b", "error")
    assert frame["error"]["code"] == "out_of_capacity"


@pytest.mark.parametrize("unexpected", [False, True])
async def test_a_request_that_fails_fails_alone(
    socket: ClientConnection, cluster: EchoCluster, unexpected: bool
) -> None:
    cluster.fail_at = 1
    cluster.failure = RuntimeError("secret") if unexpected else WireError("request_failed", "gave up")
    await send(socket, op="generate", request_id="a", prompt="42")
    last = (await frames_until_end(socket, 1))["a"][-1]
    assert (last["finish_reason"], last["index"], last["usage"]) == ("error", 1, None)
    assert last["error"]["message"] == ("internal error; see the frontend's log" if unexpected else "gave up")
    cluster.failure = None
    await send(socket, op="generate", request_id="a", prompt="7")
    assert (await frames_until_end(socket, 1))["a"][-1]["finish_reason"] == "stop"


async def test_a_socket_that_closes_cancels_its_requests(address: str, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        for request_id in "abc":
            await send(socket, op="generate", request_id=request_id, prompt="42")
        await until(lambda: cluster.num_tokens == 3)
    await until(lambda: not cluster.live)
    assert len(cluster.cancelled) == 3


async def test_a_socket_that_breaks_cancels_its_requests(address: str, cluster: EchoCluster) -> None:
    cluster.pause_at = 1
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        await send(socket, op="generate", request_id="a", prompt="42")
        await until(lambda: cluster.num_tokens == 1)
        socket.transport.abort()
        await until(lambda: not cluster.live)


async def test_sockets_come_and_go_without_a_line_in_the_log(
    address: str, caplog: pytest.LogCaptureFixture, server: EmbeddedServer
) -> None:
    with caplog.at_level(logging.INFO):
        async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
            await send(socket, op="generate", request_id="a", prompt="7")
            await frames_until_end(socket, 1)
        await until(lambda: not server.server_state.connections)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
