"""Links of the scheduler's shell that are lost, replaced or refused."""

import asyncio
from typing import Any

import pytest

from punica_serve.errors import ProtocolError
from punica_serve.links import channel as links
from punica_serve.links.hello import HandshakeRefused
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    CancelRequest,
    Deliveries,
    FrontendHello,
    GpuJoined,
    GpuLost,
    Limits,
    StartRequest,
    StopRequest,
    encode,
    join,
)
from scheduler_peers import (
    TOKEN,
    Peers,
    add,
    cluster_of,
    cluster_when,
    gpu,
    has_ended,
    receive,
    report,
    request,
)
from waits import DEADLINE_S


async def test_a_lost_runner_gives_its_requests_to_another(peers: Peers) -> None:
    frontend, first = await peers.frontend(), await peers.runner("first", gpus=("B",))
    frontend.send(add(request()))
    start = await receive(first)
    second = await peers.runner("second", gpus=("A",))
    first.send(report(start, 40))
    while not isinstance(await receive(frontend), Deliveries):
        pass
    await first.close()
    again = await receive(second)
    assert (again.gpu_uuid, again.request.generated_ids) == ("A", (40,))
    assert again.assignment != start.assignment


async def test_a_lost_gpu_is_no_longer_its_runners_to_speak_for(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A", "B"))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 2)
    frontend.send(add(request()))
    start = await receive(runner)
    runner.send(GpuLost("B", "it caught fire"))
    runner.send(report(start, 40))
    assert (await receive(runner)).gpu_uuid == "A"
    cluster = await cluster_of(frontend)
    assert [gpu.gpu.uuid for gpu in cluster.gpus] == ["A"]
    assert (cluster.counters["gpus_lost"], cluster.counters["tokens"]) == (1, 0)


async def test_a_lost_frontend_has_its_requests_cancelled(peers: Peers) -> None:
    watcher, frontend, runner = await peers.frontend("watcher"), await peers.frontend(), await peers.runner(gpus=("A",))
    frontend.send(add(request()))
    await receive(runner)
    await frontend.close()
    assert isinstance(await receive(runner), StopRequest)
    assert (await cluster_when(watcher, lambda cluster: cluster.num_frontends == 1)).counters["cancelled"] == 1


async def test_a_frontend_that_dials_again_replaces_its_old_link(peers: Peers) -> None:
    old, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    old.send(add(request()))
    await receive(runner)
    new = await peers.frontend()
    assert isinstance(await receive(runner), StopRequest)
    old.send(CancelRequest("r1"))
    messages: list[Any] = []
    async with asyncio.timeout(DEADLINE_S):
        await old.serve(messages.append)
    assert all(isinstance(message, Limits) for message in messages)
    assert old.end_reason == "closed with code 1000 another link of frontend frontend has joined"
    assert (await cluster_of(new)).num_frontends == 1


async def test_a_second_runner_of_one_id_is_refused_until_the_first_is_gone(peers: Peers) -> None:
    first = await peers.runner(gpus=("A",))
    frontend = await peers.frontend()
    with pytest.raises(HandshakeRefused, match="another runner has the id 'runner'; give each its own `--runner-id`"):
        await peers.runner(instance="process 2")
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    await first.close()
    await cluster_when(frontend, lambda cluster: cluster.num_runners == 0)
    await peers.runner(gpus=("B",), instance="process 2")
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)


async def test_a_runner_that_dials_again_replaces_its_old_link_and_both_ends_say_so(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    frontend, old = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    new = await peers.runner()
    assert await has_ended(old)
    assert old.end_reason == "closed with code 1000 another link of runner runner has joined"
    assert "another link of runner runner has joined; the one before is closed" in caplog.text
    new.send(GpuJoined(gpu("A")))
    frontend.send(add(request()))
    assert (await receive(new)).request == request()
    assert (await cluster_of(frontend)).num_runners == 1


async def test_a_message_that_can_not_be_sent_costs_its_link_alone(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    long = add(request(prompt=60))
    monkeypatch.setattr(links, "MAX_FRAME_BYTES", len(join([encode(long)])))  # its start is longer
    frontend.send(long)
    frontend.send(add(request("r2", prompt=10)))
    assert await has_ended(runner)
    assert "does not fit a frame" in runner.end_reason
    monkeypatch.undo()
    assert (await cluster_when(frontend, lambda cluster: not cluster.gpus)).queue_length == 2


async def test_a_gpu_that_another_runner_joins_is_the_others(peers: Peers) -> None:
    frontend, old = await peers.frontend(), await peers.runner("old", gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    new = await peers.runner("new", gpus=("A",))
    await cluster_when(frontend, lambda cluster: cluster.counters["gpus_lost"] == 1)
    await old.close()
    frontend.send(add(request()))
    assert isinstance(await receive(new), StartRequest)


async def test_another_major_version_and_a_wrong_token_are_refused(peers: Peers) -> None:
    with pytest.raises(HandshakeRefused, match="9\\.0.*{}\\.{}".format(*PROTOCOL_VERSION)):
        await peers.frontend(major=9)
    with pytest.raises(HandshakeRefused, match="token"):
        await peers.frontend(token="guess")


@pytest.mark.parametrize(
    "bad",
    [GpuLost("A", "frontends have none"), FrontendHello(PROTOCOL_VERSION, TOKEN, "again")],
    ids=["a runner's", "a second hello"],
)
async def test_a_peer_that_says_what_it_may_not_is_cut_alone(peers: Peers, bad: Any) -> None:
    good, rude = await peers.frontend("good"), await peers.frontend("rude")
    assert await receive(rude) == Limits(0)
    rude.send(bad)
    assert await has_ended(rude)
    assert (await cluster_when(good, lambda cluster: cluster.num_frontends == 1)).num_frontends == 1


@pytest.mark.parametrize(
    "bad", [GpuJoined(gpu("A", num_kv_pages=0)), CancelRequest("r1")], ids=["no pages", "a frontend's"]
)
async def test_a_runner_that_says_what_it_may_not_is_cut(peers: Peers, bad: Any) -> None:
    runner = await peers.runner()
    runner.send(bad)
    with pytest.raises(ProtocolError, match="ended too early"):
        await receive(runner)
