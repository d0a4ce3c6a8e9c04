"""Answers over a websocket: their frames, in order, and their ends."""

import asyncio
import itertools
import logging
from typing import Any

import pytest
from starlette.types import Message

from echo_cluster import EchoCluster
from punica_frontend.generation.admission import Admission
from punica_serve.text.tokenizer import Tokenizer
from waits import until
from websocket_peer import Peer, Serve, cancel, generate, has_ended

CHAT = {"prompt": None, "messages": [{"role": "user", "content": "4"}]}
USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"format": "openai", "echo": True, "user": 'u\x00"'},
        {"format": "openai", "n": 3, **USAGE},
        {"format": "openai", **CHAT},
        {"format": "openai", **CHAT, **USAGE},
    ],
)
async def test_frames_are_the_same_whether_or_not_their_writer_is_woken(
    serve: Serve, cluster: EchoCluster, tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    cluster.answer = lambda request: tokenizer.encode("an answer 🦙 of words")
    frame = {name: value for name, value in generate('a"\x00', max_tokens=20, **fields).items() if value is not None}
    peers = [Peer([frame], takes_at_once=takes_at_once) for takes_at_once in (True, False)]
    for peer in peers:
        serve(peer)
    await until(lambda: all(peer.received and has_ended(peer.received[-1]) for peer in peers))
    direct, woken = peers
    assert direct.num_written > 10 and not woken.num_written
    assert [without_ids(frame) for frame in direct.received] == [without_ids(frame) for frame in woken.received]


def without_ids(frame: dict[str, Any]) -> dict[str, Any]:
    """The frame without what differs between two answers."""
    chunk = frame.get("chunk")
    return {**frame, "chunk": chunk and {name: chunk[name] for name in chunk if name not in ("id", "created")}}


async def test_a_stop_string_ends_an_answer_whose_writer_was_not_woken(serve: Serve, cluster: EchoCluster) -> None:
    cluster.answer = lambda request: request.prompt_ids
    peer = Peer([generate(prompt="longest", stop="es", max_tokens=20)])
    serve(peer)
    await until(lambda: peer.received and has_ended(peer.received[-1]))
    *frames, last = peer.received
    assert "".join(frame["text"] for frame in frames) == "long" and peer.num_written == len(frames)
    assert (last["index"], last["text"], last["finish_reason"]) == (5, "", "stop")
    assert last["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    await until(lambda: len(cluster.cancelled) == 1)


async def test_a_choice_that_a_stop_string_ended_does_not_end_another(
    serve: Serve, cluster: EchoCluster, tokenizer: Tokenizer
) -> None:
    five, six = tokenizer.encode("56")[-2:]
    # The first choice goes on behind its stop string as long as nobody closes it.
    cluster.answer = lambda request: itertools.repeat(six if request.sampling.seed == 1 else five)
    peer = Peer([generate(max_tokens=400, n=2, seed=1, stop=["6"], format="openai")])
    serve(peer)
    await until(lambda: peer.received and peer.received[-1]["done"])
    choices = [choice for frame in peer.received for choice in frame["chunk"]["choices"]]
    ends = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert sorted(ends) == [(0, "stop"), (1, "length")]


@pytest.mark.parametrize("fields", [{}, {"format": "openai", "n": 2}])
async def test_the_log_line_of_an_answer_has_the_id_of_its_frames(
    serve: Serve, cluster: EchoCluster, caplog: pytest.LogCaptureFixture, fields: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO, "punica_frontend.generation.request_log")
    peer = Peer([generate("their own", max_tokens=1, **fields)])
    serve(peer)
    num_answers = fields.get("n", 1)
    await until(lambda: len(caplog.records) == num_answers)
    lines = [vars(record)["fields"] for record in caplog.records]
    assert {line["answer_id"] for line in lines} == {frame["request_id"] for frame in peer.received} == {"their own"}
    assert {line["request_id"] for line in lines} == {request.request_id for request in cluster.requests}


async def test_a_cancelled_name_can_be_used_again_at_once(serve: Serve) -> None:
    peer = Peer([generate(), cancel("a"), generate(max_tokens=2)], is_reading=False)
    serve(peer)
    await until(lambda: peer.num_sent == 3)
    peer.reads.set()
    await until(lambda: len([frame for frame in peer.of("a") if frame["finish_reason"]]) == 2)
    assert [frame["finish_reason"] for frame in peer.of("a") if frame["finish_reason"]] == ["cancelled", "length"]


async def test_a_frontend_that_drains_refuses_by_frame_and_finishes_what_it_has(
    serve: Serve, cluster: EchoCluster, admission: Admission
) -> None:
    cluster.pause_at = 1
    is_closed = asyncio.Event()

    class Patient(Peer):
        async def receive(self) -> Message:
            if self.num_sent == 1:
                await is_closed.wait()
            return await super().receive()

    peer = Patient([generate("a", max_tokens=3), generate("b")])
    serve(peer)
    await until(lambda: peer.received)
    admission.close()
    is_closed.set()
    await until(lambda: peer.of("b"))
    (refusal,) = peer.of("b")
    assert (refusal["finish_reason"], refusal["error"]["code"]) == ("error", "cluster_unavailable")
    assert "shutting down" in refusal["error"]["message"]
    emptying = asyncio.create_task(admission.empty())
    await asyncio.sleep(0)
    assert not emptying.done()
    cluster.resumed.set()
    await emptying
    assert peer.of("a")[-1]["finish_reason"] == "length"
