"""The scheduler's shell over real websockets on loopback."""

import asyncio
import itertools
import logging
import socket
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from punica_scheduler import server
from punica_scheduler.core import admission
from punica_scheduler.core.scheduler import Scheduler
from punica_serve.errors import ConfigError
from punica_serve.protocol import (
    AdapterRef,
    AdaptersCached,
    CallReply,
    CancelRequest,
    ClusterHistory,
    Deliveries,
    DrainGpu,
    DrainRunner,
    Ending,
    Forget,
    ForgetAdapter,
    GetHistory,
    GetResidency,
    GpuJoined,
    HistoryReply,
    Limits,
    PromiseCounts,
    PromisesJudged,
    Request,
    RunnerDrained,
    SamplingParams,
    StartRequest,
    StopRequest,
    Warm,
    WarmAdapter,
    decode_history,
)
from scheduler_peers import (
    TOKEN,
    Peers,
    add,
    cluster_of,
    cluster_when,
    config,
    gpu,
    next_ending,
    receive,
    report,
    request,
    serving,
)
from waits import DEADLINE_S


async def test_a_request_runs_from_frontend_to_gpu_and_back(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    assert [await receive(frontend), await receive(frontend)] == [Limits(0), Limits(1, 128)]
    frontend.send(add(request(), handle=7))
    start = await receive(runner)
    assert (start.gpu_uuid, start.seq, start.request) == ("A", 1, request())
    runner.send(report(start, 40, 41, is_last=True))
    delivered = await receive(frontend)
    (end,) = delivered.endings
    assert 0 < end.prefill_s < DEADLINE_S
    expected = Ending(7, 2, "stop", gpu_s=0.01, prefill_s=end.prefill_s)
    assert delivered == Deliveries((7, 7), (0, 1), (40, 41), endings=(expected,))


async def test_promises_of_all_frontends_are_in_the_snapshot(peers: Peers) -> None:
    one, other = await peers.frontend("f1"), await peers.frontend("f2")
    one.send(PromisesJudged(PromiseCounts(1, 2, 3, 4)))
    other.send(PromisesJudged(PromiseCounts(first_token_kept=10)))
    cluster = await cluster_when(one, lambda cluster: cluster.counters["first_token_kept"] == 11)
    assert cluster.counters["time_per_token_broken"] == 4


async def test_a_cancelled_request_is_stopped_on_its_gpu(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    frontend.send(add(request()))
    start = await receive(runner)
    frontend.send(CancelRequest("r1"))
    assert await receive(runner) == StopRequest("A", 2, start.assignment)


async def test_commands_leave_in_the_order_of_their_numbers(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner()
    runner.send(GpuJoined(gpu("A", num_kv_pages=64)))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    for i in range(50):
        frontend.send(add(request(f"r{i}")))
        frontend.send(CancelRequest(f"r{i}"))
    assert [(await receive(runner)).seq for _ in range(100)] == list(range(1, 101))


async def test_a_request_too_long_to_be_sent_with_its_answer_is_refused_alone(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    monkeypatch.setattr(admission, "MAX_FRAME_BYTES", 2000)
    monkeypatch.setattr(admission, "_NO_LONG_REQUEST_BYTES", 1000)
    frontend.send(add(Request("long", 1, (5,) * 3, SamplingParams(max_tokens=1000))))
    error = (await next_ending(frontend)).error
    assert error is not None and "2000 can be sent" in error.message
    assert (error.code, error.param) == ("invalid_request", "max_tokens")
    frontend.send(add(request()))
    assert (await receive(runner)).request == request()


async def test_requests_wait_for_a_gpu_to_join(peers: Peers) -> None:
    frontend = await peers.frontend()
    frontend.send(add(request()))
    assert (await cluster_of(frontend)).queue_length == 1
    runner = await peers.runner(gpus=("A",))
    assert (await receive(runner)).request == request()


async def test_time_ends_the_settling_and_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.monotonic_ns
    async with serving(config(settle_s=0.1, queue_timeout_s=2 * DEADLINE_S)) as peers:
        frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
        frontend.send(add(request("first", prompt=100), handle=1))
        frontend.send(add(request("second", prompt=100), handle=2))
        assert (await receive(runner)).request.request_id == "first"
        await cluster_when(frontend, lambda cluster: cluster.queue_length == 1)
        monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns() + int(3e9 * DEADLINE_S))
        ending = await next_ending(frontend)
        assert ending.error is not None
        assert (ending.handle, ending.error.code) == (2, "out_of_capacity")


@pytest.mark.parametrize("hours", [-1, 1])
async def test_whoever_sets_the_clock_ends_no_wait_and_stops_no_settling(
    monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    now_ns = time.time_ns
    async with serving(config(settle_s=0.1, queue_timeout_s=60.0)) as peers:
        frontend = await peers.frontend()
        frontend.send(add(request()))
        await cluster_when(frontend, lambda cluster: cluster.queue_length == 1)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + hours * 3600 * 10**9)
        await asyncio.sleep(2 * server.TICK_S)
        runner = await peers.runner(gpus=("A",))
        assert (await receive(runner)).request == request()


async def test_a_request_that_can_never_fit_is_refused_with_its_field(peers: Peers) -> None:
    frontend = await peers.frontend()
    await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    frontend.send(add(request(prompt=500)))
    error = (await next_ending(frontend)).error
    assert error is not None
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")


async def test_a_port_in_use_is_a_config_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            await server.serve(config(port=port), TOKEN)


async def test_a_bug_in_the_core_ends_the_server_with_its_cause_and_its_event_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def handle(*_: object) -> None:
        raise RuntimeError("the state are wrong")

    monkeypatch.setattr(Scheduler, "handle", handle)
    with pytest.raises(RuntimeError, match="the state are wrong"):
        await asyncio.wait_for(server.serve(config().model_copy(update={"data_folder": tmp_path}), TOKEN), DEADLINE_S)
    assert len(list(tmp_path.glob("scheduler-events-*.txt"))) == 1  # noqa: ASYNC240


async def test_a_frontend_drains_a_gpu_and_takes_it_back(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A", "B"))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 2)
    frontend.send(add(request()))
    assert (await receive(runner)).gpu_uuid == "B"
    frontend.send(DrainGpu(7, "B", drain=True))
    assert [await receive(frontend), await receive(frontend)] == [Limits(2, 128, 1), CallReply(7)]
    stop, start = await receive(runner), await receive(runner)
    assert (stop.gpu_uuid, start.gpu_uuid) == ("B", "A")
    assert [gpu.is_draining for gpu in (await cluster_of(frontend)).gpus] == [False, True]
    frontend.send(DrainGpu(8, "B", drain=False))
    assert [await receive(frontend), await receive(frontend)] == [Limits(2, 128, 0), CallReply(8)]
    frontend.send(DrainGpu(9, "C", drain=True))
    reply = await receive(frontend)
    assert (reply.call_id, reply.error.code) == (9, "gpu_not_found")


async def test_a_runner_that_drains_is_told_when_nothing_is_left(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    frontend.send(add(request()))
    start = await receive(runner)
    runner.send(DrainRunner())
    runner.send(report(start, 40, is_last=True))
    assert await receive(runner) == RunnerDrained()
    assert (await next_ending(frontend)).reason == "stop"


@pytest.mark.parametrize("on_purpose", [True, False])
async def test_a_runner_that_leaves_on_purpose_is_no_warning(
    peers: Peers, caplog: pytest.LogCaptureFixture, on_purpose: bool
) -> None:
    caplog.set_level(logging.INFO)
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    if on_purpose:
        runner.end()
    else:
        runner._socket.transport.abort()
    await cluster_when(frontend, lambda cluster: not cluster.gpus)
    (left,) = [record for record in caplog.records if "left with its GPUs A" in record.getMessage()]
    assert left.levelno == (logging.INFO if on_purpose else logging.WARNING)


async def test_adapters_are_warmed_found_and_evicted(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    adapter = AdapterRef("x", "/adapters/x", 1, {"q_proj": 8})
    frontend.send(WarmAdapter(1, adapter, pin=True))
    assert await receive(runner) == Warm("A", adapter, True)
    assert await receive(frontend) == CallReply(1)
    runner.send(AdaptersCached("A", came=("x",)))
    runner.send(AdaptersCached("B", came=("y",)))  # another's GPU
    runner.send(AdaptersCached(None, came=("x",)))
    await cluster_when(frontend, lambda cluster: cluster.num_runners == 1)
    async with asyncio.timeout(DEADLINE_S):
        while True:
            frontend.send(GetResidency(2))
            reply = await receive(frontend)
            assert reply.call_id == 2
            if reply.adapters and reply.adapters[0].disks:
                break
    (residency,) = reply.adapters
    assert (residency.digest, residency.hosts, len(residency.disks)) == ("x", ("A",), 1)
    frontend.send(ForgetAdapter(3, "x"))
    assert await receive(frontend) == CallReply(3)
    assert await receive(runner) == Forget("x")


async def test_a_runner_is_told_of_an_adapter_whose_request_waits(peers: Peers) -> None:
    frontend, runner = await peers.frontend(), await peers.runner(gpus=("A",))
    await cluster_when(frontend, lambda cluster: len(cluster.gpus) == 1)
    adapter = AdapterRef("x", "/adapters/x", 1, {})
    capacity = gpu("A").max_batch_size
    for number in range(capacity):
        frontend.send(add(request(f"r{number}"), number))
    frontend.send(add(replace(request("waits"), adapter=adapter), capacity))
    for _ in range(capacity):
        assert isinstance(await receive(runner), StartRequest)
    assert await receive(runner) == Warm("A", adapter, None, host_only=True)


async def test_a_frontend_asks_for_the_past(peers: Peers) -> None:
    frontend, _ = await peers.frontend(), await peers.runner(gpus=("A",))
    assert [await receive(frontend), await receive(frontend)] == [Limits(0), Limits(1, 128)]
    history: ClusterHistory
    for call_id in itertools.count():
        frontend.send(GetHistory(call_id))
        reply = await receive(frontend)
        assert isinstance(reply, HistoryReply) and reply.call_id == call_id
        if "A" in (history := decode_history(reply.history)).gpus:
            break
        await asyncio.sleep(0.05)
    assert len(history.gpus["A"].batch_size_mean) == len(history.at_ns)
