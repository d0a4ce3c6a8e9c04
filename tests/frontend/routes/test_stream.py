import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from punica_frontend.app import max_body_bytes
from punica_frontend.http_server import EmbeddedServer
from punica_serve.config import EngineConfig
from punica_serve.model_config import ModelConfig
from punica_serve.protocol import WireError

Until = Callable[..., Coroutine[Any, Any, None]]


@pytest.fixture
async def socket(address: str) -> AsyncIterator[ClientConnection]:
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        yield socket


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(5):
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


async def test_cancel(socket: ClientConnection, cluster: Any, until: Until) -> None:
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


MALFORMED: list[tuple[str | bytes, str | None, str | None]] = [
    ("", None, None),
    ("{", None, None),
    ("[]", None, "op"),
    ("null", None, "op"),
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
    ('{"op": "generate", "request_id": "x", "prompt": "\\ud800"}', "x", None),
    ('{"op": "generate", "request_id": "\\ud800", "prompt": "4"}', None, None),
    ('{"op": "generate", "request_id": "x", "prompt": ""}', "x", "prompt"),
    ('{"op": "generate", "request_id": "x", "prompt": "4", "lora_id": "nope"}', "x", "lora_id"),
    ('{"op": "cancel", "request_id": "x", "why": "so"}', "x", "why"),
]


async def test_malformed_frames_harm_nobody_else(socket: ClientConnection, cluster: Any) -> None:
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


async def test_a_long_frame_of_mistakes_is_one_error(socket: ClientConnection) -> None:
    await socket.send('{"op": "generate", "request_id": "x", "input_ids": [' + "[]," * 340_000 + "[]]}")
    frame = await receive(socket)
    assert (frame["request_id"], frame["error"]["param"]) == ("x", "input_ids.0")
    assert "more)" not in frame["error"]["message"]


async def test_a_frame_that_is_too_long_harms_nobody_else(
    socket: ClientConnection, cluster: Any, model: ModelConfig, engine: EngineConfig
) -> None:
    max_bytes = max_body_bytes(model, engine)
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
    socket: ClientConnection, model: ModelConfig, engine: EngineConfig
) -> None:
    await socket.send("x" * (2 * max_body_bytes(model, engine) + 1))
    with pytest.raises(ConnectionClosedError) as closed:
        await receive(socket)
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009


async def test_a_name_that_is_taken(socket: ClientConnection, cluster: Any) -> None:
    cluster.pause_at = 0
    await send(socket, op="generate", request_id="a", prompt="7")
    await send(socket, op="generate", request_id="a", prompt="8")
    frame = await receive(socket)
    assert (frame["request_id"], frame["finish_reason"], frame["error"]["param"]) == ("a", None, "request_id")
    cluster.resumed.set()
    assert [frame["text"] for frame in (await frames_until_end(socket, 1))["a"]] == ["7", ""]


async def test_too_many_live_requests(socket: ClientConnection, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_frontend.socket.MAX_LIVE", 1)
    cluster.pause_at = 0
    await send(socket, op="generate", request_id="a", prompt="7")
    await send(socket, op="generate", request_id="b", prompt="7")
    frame = await receive(socket)
    assert (frame["request_id"], frame["finish_reason"]) == ("b", "error")
    assert frame["error"]["code"] == "out_of_capacity"


@pytest.mark.parametrize("unexpected", [False, True])
async def test_a_request_that_fails_fails_alone(socket: ClientConnection, cluster: Any, unexpected: bool) -> None:
    cluster.fail_at = 1
    cluster.failure = RuntimeError("secret") if unexpected else WireError("request_failed", "gave up")
    await send(socket, op="generate", request_id="a", prompt="42")
    last = (await frames_until_end(socket, 1))["a"][-1]
    assert (last["finish_reason"], last["index"]) == ("error", 1)
    assert last["error"]["message"] == ("internal error; the frontend's log says more" if unexpected else "gave up")
    cluster.failure = None
    await send(socket, op="generate", request_id="a", prompt="7")
    assert (await frames_until_end(socket, 1))["a"][-1]["finish_reason"] == "stop"


async def test_a_socket_that_closes_cancels_its_requests(address: str, cluster: Any, until: Until) -> None:
    cluster.pause_at = 1
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        for request_id in "abc":
            await send(socket, op="generate", request_id=request_id, prompt="42")
        await until(lambda: cluster.num_tokens == 3)
    await until(lambda: not cluster.live)
    assert len(cluster.cancelled) == 3


async def test_a_socket_that_breaks_cancels_its_requests(address: str, cluster: Any, until: Until) -> None:
    cluster.pause_at = 1
    async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
        await send(socket, op="generate", request_id="a", prompt="42")
        await until(lambda: cluster.num_tokens == 1)
        socket.transport.abort()
        await until(lambda: not cluster.live)


async def test_sockets_come_and_go_without_a_line_in_the_log(
    address: str, caplog: pytest.LogCaptureFixture, server: EmbeddedServer, until: Until
) -> None:
    with caplog.at_level(logging.INFO):
        async with connect(f"ws://{address}/v1/generate/stream", proxy=None) as socket:
            await send(socket, op="generate", request_id="a", prompt="7")
            await frames_until_end(socket, 1)
        await until(lambda: not server.server_state.connections)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []
