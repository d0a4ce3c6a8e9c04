import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import Slo
from punica_serve.simulation.arrivals import Arrivals
from punica_serve.simulation.live import client
from punica_serve.simulation.live.client import Replay, connected
from punica_serve.workload import RequestLength

ARRIVALS = Arrivals((0.0, 0.5, 1.0), (RequestLength(3, 2), RequestLength(4, 2), RequestLength(5, 2)), (1, 0, 1))
SLOS = (Slo(), Slo(first_token_s=0.2, time_per_token_s=0.1), Slo(first_token_s=0.2))
Answer = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]


async def answer_in_two_frames(socket: ServerConnection, request: dict[str, Any]) -> None:
    name = request["request_id"]
    await socket.send(json.dumps({"request_id": name, "index": 0, "token_ids": [7], "text": "x"}))
    await socket.send(json.dumps({"request_id": name, "index": 1, "token_ids": [8], "finish_reason": "length"}))


async def replayed(answer: Answer) -> tuple[Replay, list[dict[str, Any]], list[str]]:
    """A replay against a frontend that answers so, what that was asked, and on which paths."""
    requests: list[dict[str, Any]] = []
    paths: list[str] = []

    async def handle(socket: ServerConnection) -> None:
        assert socket.request is not None
        assert socket.request.headers["Authorization"] == "Bearer sk-1"
        paths.append(socket.request.path)
        async for message in socket:
            requests.append(json.loads(message))
            await answer(socket, requests[-1])

    async with serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connected([f"http://127.0.0.1:{port}"], "sk-1") as sockets:
            replay = Replay(ARRIVALS, SLOS, speed=20.0)
            await replay.run(sockets)
    return replay, requests, paths


async def test_requests_are_sent_when_they_are_due_and_heard_to_their_ends() -> None:
    replay, requests, paths = await replayed(answer_in_two_frames)
    assert set(paths) == {"/v1/generate/stream"}
    by_name = {request["request_id"]: request for request in requests}
    assert [len(by_name[name]["input_ids"]) for name in "012"] == [3, 4, 5]
    assert [by_name[name]["lora_id"] for name in "012"] == ["dummy-1", "dummy-0", "dummy-1"]
    assert by_name["1"] | {"input_ids": None} == {
        "op": "generate",
        "request_id": "1",
        "input_ids": None,
        "max_tokens": 2,
        "ignore_eos": True,
        "seed": 1,
        "lora_id": "dummy-0",
        "slo": {"first_token_s": 0.01, "time_per_token_s": 0.005},
    }
    assert "slo" not in by_name["0"] and by_name["2"]["slo"] == {"first_token_s": 0.01}
    for stream, due_s in zip(replay.streams, ARRIVALS.times_s, strict=True):
        assert (stream.num_tokens, stream.error) == (2, None)
        assert stream.first_token_s is not None and stream.last_token_s is not None
        assert due_s <= stream.sent_s <= stream.first_token_s <= stream.last_token_s == stream.ended_s


async def test_a_gap_and_an_error_are_noticed() -> None:
    async def answer(socket: ServerConnection, request: dict[str, Any]) -> None:
        name = request["request_id"]
        if name == "0":
            await socket.send(json.dumps({"request_id": name, "index": 1, "token_ids": [8], "finish_reason": "length"}))
        elif name == "1":
            frame = {"request_id": name, "index": 0, "finish_reason": "error", "error": {"message": "queue full"}}
            await socket.send(json.dumps(frame))
        else:
            await answer_in_two_frames(socket, request)

    replay, _, _ = await replayed(answer)
    assert [stream.error for stream in replay.streams] == [
        "tokens 0 to 0 are missing or were sent twice",
        "queue full",
        None,
    ]


async def test_a_request_without_an_end_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_DRAIN_S", 0.05)

    async def answer(_socket: ServerConnection, _request: dict[str, Any]) -> None:
        pass

    replay, _, _ = await replayed(answer)
    assert [stream.ended_s for stream in replay.streams] == [None] * 3


async def test_a_frontend_that_cuts_is_told() -> None:
    async def answer(socket: ServerConnection, _request: dict[str, Any]) -> None:
        await socket.close(1011, "no more")

    with pytest.raises(ClusterUnavailable, match="cut the connection"):
        await replayed(answer)


async def test_connections_that_are_cut_before_the_first_request_are_told() -> None:
    """Then the sender fails beside the readers."""

    async def handle(socket: ServerConnection) -> None:
        await socket.close(1011, "no more")

    async with serve(handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connected([f"http://127.0.0.1:{port}"]) as sockets:
            for socket in sockets:
                await socket.wait_closed()
            with pytest.raises(ClusterUnavailable, match="cut the connection"):
                await Replay(ARRIVALS, SLOS, speed=1e9).run(sockets)


async def test_a_frontend_that_is_not_there_is_told() -> None:
    with pytest.raises(
        ClusterUnavailable, match=r"no frontend answers at http://127\.0\.0\.1:1 \(Connection refused\); "
    ):
        async with connected(["http://127.0.0.1:1"]):
            pass
