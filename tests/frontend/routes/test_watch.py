"""WS /v1/cluster/watch: the cluster, again and again."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from echo_cluster import EchoCluster
from punica_frontend.api.caller import ANYONE, Caller
from punica_frontend.watch import view
from punica_frontend.watch.frames import Frames
from punica_frontend.watch.view import Viewer
from punica_frontend.watch.watcher import Watcher
from punica_serve.protocol import Mark
from punica_serve.registry.registry import Registry
from waits import DEADLINE_S, until


def watching(address: str, per_s: str = "5") -> connect:
    return connect(f"ws://{address}/v1/cluster/watch?per_s={per_s}", proxy=None)


async def next_frame(socket: ClientConnection) -> Any:
    return json.loads(await asyncio.wait_for(socket.recv(), DEADLINE_S))


async def test_the_past_and_then_the_cluster_as_elsewhere(address: str, client: httpx.AsyncClient) -> None:
    async with watching(address) as socket:
        past, *frames = [await next_frame(socket) for _ in range(3)]
    times = [{"p50": 0.1, "p90": 0.2, "p99": 0.3}]
    assert past["type"] == "history" and past["history"]["first_token_s"] == times
    assert past["history"]["gpus"] == {
        "CPU-1": {"batch_size_mean": [1.0], "batch_size_max": [1], "used_kv_pages": [10], "name": "host/0"}
    }
    told = {"type": "cluster", "cluster": (await client.get("/v1/cluster")).json()}
    assert frames == [told, told]


async def test_the_past_is_asked_for_and_encoded_once_however_many_dial(
    cluster: EchoCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("punica_frontend.watch.frames._PAST_GOOD_FOR_S", 1000.0)
    frames = Frames(cluster)
    told = [*await asyncio.gather(*(frames.past() for _ in range(20))), await frames.past()]
    assert cluster.num_histories == 1 and all(frame is told[0] for frame in told)


async def test_a_view_is_encoded_once_for_all_who_may_see_the_same(
    cluster: EchoCluster, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []

    def encode(value: Any) -> bytes:
        encoded.append(value)
        return view.encode(value)

    monkeypatch.setattr("punica_frontend.watch.frames.encode", encode)
    cluster.marks = [Mark(1, 5, "migrated", ("A",), 1)]
    cluster.resident_adapters = ("d1", "of-somebody")
    frames, snapshot = Frames(cluster), await cluster.cluster()
    tenant = Caller("acme-1", "acme", "user")

    async def told(caller: Caller, since_ns: int) -> str:
        return (await frames.cluster(snapshot, Viewer(caller, registry), since_ns)).frame

    alike = await asyncio.gather(*(told(ANYONE, since_ns) for since_ns in range(6)))
    assert len(encoded) == 1 and len(set(alike)) == 1
    others = await asyncio.gather(*(told(tenant, 0) for _ in range(5)))
    assert len(encoded) == 2 and set(others).isdisjoint(alike), "tenants see less"
    assert json.loads(await told(tenant, 6))["cluster"]["marks"] == [] and len(encoded) == 3
    snapshot = await cluster.cluster()
    await told(tenant, 6)
    assert len(encoded) == 4


async def test_a_single_request_shares_the_watchers_encoding(cluster: EchoCluster, registry: Registry) -> None:
    frames, snapshot = Frames(cluster), await cluster.cluster()
    one, other = await asyncio.gather(*(frames.cluster(snapshot, Viewer(ANYONE, registry)) for _ in range(2)))
    assert one is other
    assert json.loads(one.frame) == {"type": "cluster", "cluster": json.loads(one.body)}


async def test_a_tenant_has_so_many_watchers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("punica_frontend.routes.watch.MAX_TENANT_WATCHERS", 2)
    async with watching(address) as first, watching(address) as second:
        for socket in (first, second):
            await next_frame(socket)
        with pytest.raises(InvalidStatus) as refused:
            async with watching(address):
                pass
        assert refused.value.response.status_code == 429
        error = json.loads(refused.value.response.body)["error"]
        assert error["code"] == "quota_exceeded" and "close one" in error["message"]

    for attempt in range(100):  # the frontend notices soon that they have left
        await asyncio.sleep(0.05 * attempt)
        with contextlib.suppress(InvalidStatus):
            async with watching(address) as socket:
                assert (await next_frame(socket))["type"] == "history"
                return
    pytest.fail("nobody is let in after those who left")


async def test_marks_are_sent_until_they_are_final(address: str, cluster: EchoCluster) -> None:
    cluster.now_ns = 10_000_000_000
    cluster.marks = [Mark(1, 3_000_000_000, "migrated", ("A",), 1), Mark(2, 9_500_000_000, "evicted", (), 2)]
    async with watching(address) as socket:
        frames = [await next_frame(socket) for _ in range(3)]
        numbers = [[mark["number"] for mark in frame["cluster"]["marks"]] for frame in frames[1:]]
        assert numbers == [[1, 2], [2]]
        cluster.now_ns = 20_000_000_000
        while (await next_frame(socket))["cluster"]["now_ns"] != cluster.now_ns:
            pass
        assert (await next_frame(socket))["cluster"]["marks"] == []


async def test_watchers_outlive_the_scheduler(address: str, cluster: EchoCluster) -> None:
    cluster.connected = False
    async with watching(address) as socket:
        frame = await next_frame(socket)
        assert frame["type"] == "unavailable" and frame["error"]["code"] == "cluster_unavailable"
        cluster.connected = True
        kinds: list[str] = []
        while kinds[-1:] != ["cluster"]:
            kinds.append((await next_frame(socket))["type"])
        assert kinds[-2:] == ["history", "cluster"], "the past comes when it can be had"


@pytest.mark.parametrize("per_s", ["0", "-1", "6", "nan", "often", ""])
async def test_an_impossible_rate_is_refused(address: str, per_s: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with watching(address, per_s):
            pass
    assert refused.value.response.status_code == 400
    error = json.loads(refused.value.response.body)["error"]
    assert error["param"] == "per_s" and "from 0.1 to 5" in error["message"]


async def test_a_watcher_who_does_not_read_misses_what_was_between(cluster: EchoCluster, registry: Registry) -> None:
    told: list[Any] = []
    reads = asyncio.Event()
    reads.set()

    async def send(message: Any) -> None:
        told.append(json.loads(message["text"]))
        await reads.wait()

    watcher = Watcher(cluster, Frames(cluster), Viewer(ANYONE, registry), lambda: True, interval_s=0.001)
    watching = asyncio.create_task(watcher.run(asyncio.Event().wait, send))  # type: ignore[arg-type]
    await until(lambda: len(told) > 2)
    reads.clear()
    waiting_at = len(told) + 1
    await until(lambda: len(told) >= waiting_at)
    for cluster.now_ns in range(100, 200):
        await asyncio.sleep(0.001)
    assert len(told) == waiting_at
    reads.set()
    await until(lambda: len(told) > waiting_at)
    assert told[waiting_at]["cluster"]["now_ns"] == 199
    watching.cancel()
    await asyncio.wait((watching,))


async def test_a_watchers_messages_are_ignored(address: str) -> None:
    async with watching(address) as socket:
        await socket.send("no JSON")
        assert [(await next_frame(socket))["type"] for _ in range(3)] == ["history", "cluster", "cluster"]
