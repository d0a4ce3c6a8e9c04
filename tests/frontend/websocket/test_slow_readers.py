"""Clients that are slow, hostile or gone, as fake sockets whose ``send`` the test holds."""

import asyncio
import itertools
from typing import Any

import pytest

from echo_cluster import EchoCluster
from punica_frontend.scheduler_link.live_request import MAX_DELIVERY_BYTES, TOKEN_BYTES, Backlog
from punica_frontend.websocket.websocket_session import MAX_QUEUED
from waits import until
from websocket_peer import Peer, Serve, cancel, generate, has_ended


async def test_tokens_that_a_slow_reader_does_not_take_come_together(serve: Serve, cluster: EchoCluster) -> None:
    peer = Peer([generate(max_tokens=500)], is_reading=False)
    serve(peer)
    await until(lambda: cluster.num_tokens == 500)
    peer.reads.set()
    await until(lambda: peer.received and peer.received[-1]["finish_reason"] == "length")
    assert [(frame["index"], len(frame["token_ids"])) for frame in peer.received] == [(0, 1), (1, 499)]


@pytest.mark.parametrize("shape", [{}, {"format": "openai"}])
async def test_no_frame_of_a_slow_reader_is_longer_than_clients_take(
    serve: Serve, cluster: EchoCluster, shape: dict[str, Any]
) -> None:
    num_tokens = 3 * MAX_DELIVERY_BYTES // (3 * TOKEN_BYTES)
    peer = Peer([generate(max_tokens=num_tokens, logprobs=1, **shape)], is_reading=False)
    cluster.turns_per_token = 0
    serve(peer)
    await until(lambda: cluster.num_tokens == num_tokens)
    peer.reads.set()
    await until(lambda: peer.received and (peer.received[-1].get("finish_reason") or peer.received[-1].get("done")))
    assert 3 <= len(peer.received) <= 5
    assert max(peer.lengths) < 1 << 20


async def test_no_frame_overtakes_one_that_is_being_sent(serve: Serve, cluster: EchoCluster) -> None:
    peer = Peer([generate(max_tokens=60), generate("b", max_tokens=60)], is_reading=False)
    serve(peer)
    for num_tokens in (4, 40, 80):
        await until(lambda: cluster.num_tokens >= num_tokens)  # noqa: B023 - it is awaited here
        peer.reads.set()
        await asyncio.sleep(0)
        peer.reads.clear()
    peer.reads.set()
    await until(lambda: sum(map(has_ended, peer.received)) == 2)
    for name in "ab":
        lengths = [len(frame["token_ids"]) for frame in peer.of(name)]
        assert [frame["index"] for frame in peer.of(name)] == [sum(lengths[:count]) for count in range(len(lengths))]
        assert sum(lengths) == 60


async def test_no_frame_of_an_echo_is_longer_than_clients_take(serve: Serve) -> None:
    prompt = "\0" * 400_000  # no character is longer in JSON
    peer = Peer([generate(format="openai", prompt=prompt, echo=True, max_tokens=2)])
    serve(peer, max_frame_bytes=4 << 20)
    await until(lambda: peer.received and peer.received[-1]["done"])
    texts = [frame["chunk"]["choices"][0]["text"] for frame in peer.received]
    assert "".join(texts).startswith(prompt) and "".join(texts) != prompt
    assert max(peer.lengths) < 1 << 20


async def test_a_slow_reader_does_not_delay_others(serve: Serve) -> None:
    slow, quick = Peer([generate()], is_reading=False), Peer([generate(max_tokens=100)])
    serve(slow)
    serve(quick)
    await until(lambda: quick.received and quick.received[-1]["finish_reason"] == "length")
    assert sum(len(frame["token_ids"]) for frame in quick.received) == 100
    assert not slow.received


async def test_a_request_ends_with_an_error_when_its_readers_backlog_is_full(
    serve: Serve, cluster: EchoCluster
) -> None:
    peer = Peer([generate()], is_reading=False)
    serve(peer)._backlog = Backlog(20 * TOKEN_BYTES)
    await until(lambda: cluster.failed)
    peer.reads.set()
    await until(lambda: peer.received and peer.received[-1]["finish_reason"])
    last = peer.received[-1]
    assert (last["finish_reason"], last["error"]["code"]) == ("error", "slow_reader")
    assert "reads too slowly" in last["error"]["message"]
    await until(lambda: not cluster.live)


@pytest.mark.parametrize("frame", ["no frame", {"op": "ping"}])
async def test_a_flood_of_frames_is_not_read_beyond_what_its_sender_takes(
    serve: Serve, frame: dict[str, str] | str
) -> None:
    peer = Peer(itertools.repeat(frame), is_reading=False)
    quick = Peer([generate(max_tokens=100)])
    serve(peer)
    serve(quick)
    await until(lambda: peer.num_sent > MAX_QUEUED and quick.received and quick.received[-1]["finish_reason"])
    assert peer.num_sent == MAX_QUEUED + 1  # one is being sent
    peer.reads.set()
    await until(lambda: peer.num_sent > 2 * MAX_QUEUED)


async def test_a_storm_of_cancels_leaves_nothing_and_is_bounded(serve: Serve, cluster: EchoCluster) -> None:
    storm = itertools.chain.from_iterable((generate(), cancel("a"), cancel("b")) for _ in itertools.count())
    peer, quick = Peer(storm, is_reading=False), Peer([generate(max_tokens=100)])
    serve(peer)
    serve(quick)
    await until(lambda: quick.received and quick.received[-1]["finish_reason"])
    # The requests of the storm that were begun are over at once; their last frames are queued.
    assert peer.num_sent <= 3 * (MAX_QUEUED + 2)
    assert len(cluster.live) <= 1
    peer.reads.set()
    await until(lambda: len(peer.received) > 10)
    assert {frame["finish_reason"] for frame in peer.received[1:]} <= {"cancelled", None}


async def test_a_client_that_leaves_while_it_is_sent_to_cancels_its_requests(
    serve: Serve, cluster: EchoCluster
) -> None:
    peer = Peer([generate("a"), generate("b")], is_reading=False)
    serve(peer)
    await until(lambda: len(cluster.live) == 2)
    peer.leaves.set()
    peer.reads.set()
    await until(lambda: not cluster.live)
    assert len(cluster.cancelled) == 2
