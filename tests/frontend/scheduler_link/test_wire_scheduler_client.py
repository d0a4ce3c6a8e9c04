import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from punica_frontend.scheduler_link import promise_reporter, wire_scheduler_client
from punica_frontend.scheduler_link.live_request import TOKEN_BYTES, Backlog, Delivery
from punica_frontend.scheduler_link.wire_scheduler_client import RECOVERY_TIMEOUT_S, WireSchedulerClient
from punica_serve.cli.watchdog import START_TIMEOUT_S
from punica_serve.errors import ClusterUnavailable, GpuNotFound
from punica_serve.protocol import (
    AdapterRef,
    AdapterResidency,
    AddRequest,
    CallReply,
    CancelRequest,
    ClusterHistory,
    ClusterReply,
    ClusterSnapshot,
    Deliveries,
    DrainGpu,
    Ending,
    FinishReason,
    ForgetAdapter,
    GetCluster,
    GetHistory,
    GetResidency,
    GpuHistory,
    HistoryReply,
    Limits,
    PromiseCounts,
    PromisesJudged,
    RateLimits,
    Request,
    ResidencyReply,
    SamplingParams,
    Slo,
    TenantQuota,
    TokenLogprobs,
    WarmAdapter,
    WireError,
    encode_history,
)
from scripted_scheduler import ScriptedScheduler
from waits import until

QUOTA = TenantQuota(max_concurrent=3)
REQUEST = Request("r", 1, (1, 2), SamplingParams(), slo=Slo(0.5, 0.02))
SNAPSHOT = ClusterSnapshot(1, 2, (), 0, 1, 0, {})
#: Handle of a client's first request.
HANDLE = 0
ADDED = AddRequest(HANDLE, REQUEST, QUOTA)
AGAIN = AddRequest(HANDLE, REQUEST, QUOTA, is_new=False)


def tokens(position: int, *token_ids: int, handle: int = HANDLE, end: FinishReason | None = None) -> Deliveries:
    """Tokens of one request, and its end."""
    num_tokens = len(token_ids)
    endings = (Ending(handle, position + num_tokens, end),) if end else ()
    positions = tuple(range(position, position + num_tokens))
    return Deliveries((handle,) * num_tokens, positions, token_ids, endings=endings)


@pytest.fixture
async def client(scheduler: ScriptedScheduler) -> AsyncIterator[WireSchedulerClient]:
    client = WireSchedulerClient(f"ws://127.0.0.1:{scheduler.port}", "secret")
    running = asyncio.create_task(client.run())
    await until(lambda: client.connected)
    yield client
    running.cancel()
    await asyncio.wait([running])


async def deliveries_of(client: WireSchedulerClient, backlog: Backlog | None = None) -> AsyncGenerator[Delivery, None]:
    """Returns the deliveries of a request, from its start to its end or its stop."""
    ready = asyncio.Event()
    live = await client.start(REQUEST, QUOTA, ready.set, backlog or Backlog(), lambda ending: None)
    try:
        while True:
            await ready.wait()
            ready.clear()
            delivery = live.take()
            yield delivery
            if delivery.finish_reason:
                return
    finally:
        client.stop(live)


async def collect(client: WireSchedulerClient, backlog: Backlog | None = None) -> list[Delivery]:
    async with aclosing(deliveries_of(client, backlog)) as deliveries:
        return [delivery async for delivery in deliveries]


async def test_judged_promises_wait_for_a_link_and_go_over_the_next(
    client: WireSchedulerClient, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promise_reporter, "INTERVAL_S", 0.02)
    client.report_promises(PromiseCounts(1, 0, 0, 2))
    await until(lambda: scheduler.received == [PromisesJudged(PromiseCounts(1, 0, 0, 2))])
    await scheduler.cut()
    await until(lambda: not client.connected)
    client.report_promises(PromiseCounts(3))
    await until(lambda: scheduler.received[1:] == [PromisesJudged(PromiseCounts(3))])


async def test_a_request_from_first_to_last(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    collecting = asyncio.create_task(collect(client))
    await until(lambda: scheduler.received == [ADDED])
    scheduler.send(tokens(0, 10))
    scheduler.send(tokens(0, 7, handle=99, end="stop"))
    scheduler.send(tokens(1, 11, end="stop"))
    deliveries = await collecting
    assert [token_id for delivery in deliveries for token_id in delivery.token_ids] == [10, 11]
    assert deliveries[-1].finish_reason == "stop"
    assert scheduler.received == [ADDED]


async def test_cached_tokens_come_with_the_first_token(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    collecting = asyncio.create_task(collect(client))
    await until(lambda: scheduler.received == [ADDED])
    scheduler.send(replace(tokens(0, 10), cached=((0, 16), (99, 7))))
    scheduler.send(tokens(1, 11, end="stop"))
    assert {delivery.num_cached_tokens for delivery in await collecting} == {16}


async def test_rate_limits_come_to_their_request_before_its_end(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    ready = asyncio.Event()
    live = await client.start(REQUEST, QUOTA, ready.set, Backlog(), lambda ending: None)
    limits = [RateLimits(handle, 3, 2, None, None, 60.0) for handle in (0, 99)]
    ending = Ending(0, 0, "error", WireError("quota_exceeded", "no more"))
    scheduler.send(Deliveries(endings=(ending,), rate_limits=tuple(limits)))
    await ready.wait()
    assert live.rate_limits == limits[0]
    client.stop(live)


async def test_one_message_serves_many_requests(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    collecting = [asyncio.create_task(collect(client)) for _ in range(2)]
    await until(lambda: scheduler.received == [AddRequest(handle, REQUEST, QUOTA) for handle in (0, 1)])
    logprobs = (TokenLogprobs(-1.0), None, None)
    endings = (Ending(0, 2, "stop"), Ending(1, 1, "length"))
    scheduler.send(Deliveries((0, 1, 0), (0, 0, 1), (10, 20, 11), logprobs, endings))
    assert await collecting[0] == [Delivery(0, (10, 11), (TokenLogprobs(-1.0),), "stop")]
    assert await collecting[1] == [Delivery(0, (20,), finish_reason="length")]


async def test_closing_early_cancels(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    async with aclosing(deliveries_of(client)) as deliveries:
        waiting = asyncio.ensure_future(anext(deliveries))
        await until(lambda: len(scheduler.received) == 1)
        scheduler.send(tokens(0, 10))
        assert await waiting == Delivery(0, (10,))
    await until(lambda: scheduler.received == [ADDED, CancelRequest("r")])
    # Messages on their way do not break the link.
    scheduler.send(tokens(1, 11))
    scheduler.send(Limits(2, 64))
    await until(lambda: client.limits == Limits(2, 64))


async def test_the_size_of_gpus_that_are_gone_for_now_is_kept(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    scheduler.send(Limits(2, 64))
    scheduler.send(Limits(0, None))
    await until(lambda: client.limits == Limits(0, None))
    assert client.last_request_tokens == 64
    await scheduler.cut()
    await until(lambda: client.limits is None)
    assert client.last_request_tokens == 64


async def test_after_a_lost_link_requests_go_on_where_they_were(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    scheduler.send(Limits(1, 64))
    collecting = asyncio.create_task(collect(client))
    await until(lambda: len(scheduler.received) == 1)
    scheduler.send(tokens(0, 10, 11))
    await scheduler.cut()
    resumed = AddRequest(HANDLE, replace(REQUEST, generated_ids=(10, 11)), QUOTA, is_new=False)
    await until(lambda: scheduler.received[-1] == resumed)
    assert client.limits is None
    scheduler.send(tokens(2, 12, end="length"))
    deliveries = await collecting
    assert [token_id for delivery in deliveries for token_id in delivery.token_ids] == [10, 11, 12]


async def test_missing_tokens_are_a_broken_link(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    collecting = asyncio.create_task(collect(client))
    await until(lambda: len(scheduler.received) == 1)
    scheduler.send(tokens(3, 13))
    await until(lambda: scheduler.received == [ADDED, AGAIN])
    scheduler.send(tokens(0, 10, end="stop"))
    assert (await collecting)[-1].token_ids == (10,)


async def test_without_a_scheduler_a_new_request_waits_a_little(
    scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_scheduler_client, "CONNECT_TIMEOUT_S", 0.02)
    client = WireSchedulerClient(f"ws://127.0.0.1:{scheduler.port}", "secret")
    assert not client.connected
    with pytest.raises(ClusterUnavailable, match=r"^the scheduler can't be reached; try again$"):
        await collect(client)
    with pytest.raises(ClusterUnavailable, match="can't be reached"):
        await client.cluster()


async def test_a_scheduler_that_stays_away_fails_its_requests(
    client: WireSchedulerClient, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_scheduler_client, "RECOVERY_TIMEOUT_S", 0.01)
    collecting = asyncio.create_task(collect(client))
    await until(lambda: len(scheduler.received) == 1)
    monkeypatch.setattr("punica_serve.links.hello.RECONNECT_FIRST_S", 5.0)
    await scheduler.cut()
    last = (await collecting)[-1]
    assert last.finish_reason == "error" and last.error is not None and last.error.code == "cluster_unavailable"


def test_requests_outlive_a_scheduler_that_freezes_while_it_starts() -> None:
    """It is killed when its start has taken too long, and then has to start once more, on a busy machine."""
    systemd_s, again_s = 90.0, 20.0
    assert max(START_TIMEOUT_S, systemd_s) + again_s <= RECOVERY_TIMEOUT_S


async def test_the_cluster(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    asking = asyncio.create_task(client.cluster())
    await until(lambda: scheduler.received == [GetCluster(0)])
    scheduler.send(ClusterReply(0, SNAPSHOT))
    assert await asking == SNAPSHOT
    asking = asyncio.create_task(client.cluster())
    await until(lambda: scheduler.received[1:] == [GetCluster(1)])
    await scheduler.cut()
    with pytest.raises(ClusterUnavailable, match="lost"):
        await asking


async def test_one_question_about_the_cluster_serves_all_who_ask_it_together(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    together = [asyncio.create_task(client.cluster()) for _ in range(3)]
    await until(lambda: scheduler.received == [GetCluster(0)])
    later = [asyncio.create_task(client.cluster()) for _ in range(3)]
    scheduler.send(ClusterReply(0, SNAPSHOT))
    assert await asyncio.gather(*together) == [SNAPSHOT] * 3
    await until(lambda: scheduler.received == [GetCluster(0), GetCluster(1)])
    assert not any(task.done() for task in later), "what was asked before they came may be of before they came"
    scheduler.send(ClusterReply(1, SNAPSHOT))
    assert await asyncio.gather(*later) == [SNAPSHOT] * 3


async def test_the_past(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    asking = asyncio.create_task(client.history())
    await until(lambda: scheduler.received == [GetHistory(0)])
    history = ClusterHistory(
        (1,), (2,), (3,), (4,), (None,), (None,), {"GPU-1": GpuHistory((4.5,), (5,), (None,), "host/0")}
    )
    scheduler.send(HistoryReply(0, encode_history(history)))
    assert await asking == history


async def test_a_call_has_a_deadline(client: WireSchedulerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_scheduler_client, "CALL_TIMEOUT_S", 0.02)
    with pytest.raises(ClusterUnavailable, match="did not answer within"):
        await client.cluster()


async def test_a_gpu_is_drained(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    asking = asyncio.create_task(client.drain_gpu("GPU-1", drain=True))
    await until(lambda: scheduler.received == [DrainGpu(0, "GPU-1", True)])
    scheduler.send(CallReply(0))
    await asking
    asking = asyncio.create_task(client.drain_gpu("GPU-2", drain=False))
    await until(lambda: len(scheduler.received) == 2)
    scheduler.send(CallReply(1, WireError("gpu_not_found", "no GPU 'GPU-2'; there are GPU-1")))
    with pytest.raises(GpuNotFound, match="there are GPU-1"):
        await asking


async def test_an_adapter_is_warmed_found_and_evicted(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    adapter = AdapterRef("d", "/store/d", 100, {"q_proj": 8})
    residency = AdapterResidency("d", 1, gpus=("GPU-1",), disks=("host",))
    asking = asyncio.gather(client.prefetch(adapter, ["GPU-1"], pin=True), client.residency(["d"]), client.evict("d"))
    calls = [WarmAdapter(0, adapter, ("GPU-1",), True), GetResidency(1, ("d",)), ForgetAdapter(2, "d")]
    await until(lambda: scheduler.received == calls)
    for reply in (CallReply(0), ResidencyReply(1, (residency,)), CallReply(2)):
        scheduler.send(reply)
    assert (await asking)[1] == (residency,)


async def test_a_call_may_be_refused(client: WireSchedulerClient, scheduler: ScriptedScheduler) -> None:
    asking = asyncio.create_task(client.residency())
    await until(lambda: scheduler.received == [GetResidency(0)])
    scheduler.send(CallReply(0, WireError("cluster_unavailable", "the scheduler has just started")))
    with pytest.raises(ClusterUnavailable, match="just started"):
        await asking


async def test_a_request_whose_reader_is_too_slow_is_cancelled(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    live = await client.start(REQUEST, QUOTA, lambda: None, Backlog(2 * TOKEN_BYTES), lambda ending: None)
    await until(lambda: len(scheduler.received) == 1)
    scheduler.send(tokens(0, 10, 11, 12, 13))
    await until(lambda: scheduler.received[1:] == [CancelRequest("r")])
    last = live.take()
    assert (last.token_ids, last.finish_reason) == ((10, 11), "error")
    assert last.error is not None and last.error.code == "slow_reader"
    client.stop(live)


@pytest.mark.parametrize("stops_early", [False, True])
async def test_resource_usage_is_reported_once_even_after_a_stop(
    client: WireSchedulerClient, scheduler: ScriptedScheduler, stops_early: bool
) -> None:
    endings: list[Ending] = []
    live = await client.start(REQUEST, QUOTA, lambda: None, Backlog(), endings.append)
    await until(lambda: scheduler.received == [ADDED])
    if stops_early:
        client.stop(live)
        await until(lambda: len(scheduler.received) == 2)
    ending = Ending(HANDLE, 0, "cancelled" if stops_early else "length", gpu_s=0.25)
    scheduler.send(Deliveries(endings=(ending,)))
    await until(lambda: endings == [ending])
    client.stop(live)
    scheduler.send(Limits(2, 64))
    await until(lambda: client.limits is not None)
    assert (endings, client._cancelled) == ([ending], {})


async def test_a_request_stopped_before_the_link_was_lost_is_not_awaited(
    client: WireSchedulerClient, scheduler: ScriptedScheduler
) -> None:
    client.stop(await client.start(REQUEST, QUOTA, lambda: None, Backlog(), lambda ending: None))
    await until(lambda: len(scheduler.received) == 2)
    await scheduler.cut()
    await until(lambda: client._cancelled == {})
