"""Processes that die while they serve, and `up` itself."""

import asyncio
import signal
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedError

from process_tree import alive
from up_cluster import Stream, Until, UpCluster

pytestmark = pytest.mark.slow


#: Greedy and drawn, of several adapters, long enough to be caught in the middle.
REQUESTS = [
    {"prompt": "42", "lora_id": lora_id, "temperature": temperature, "seed": 7, "ignore_eos": True, "max_tokens": 600}
    for temperature in (0, 0.8)
    for lora_id in (None, "roman", "french")
]
#: Where all of them together are to be more than memory holds.
NUM_SHORT = 400
SHORT_REQUESTS = [{**request, "max_tokens": NUM_SHORT} for request in REQUESTS]


async def run(cluster: UpCluster, streams: list[Stream], requests: list[dict[str, Any]] = REQUESTS) -> None:
    await asyncio.gather(*map(cluster.stream, requests, streams))


@pytest.fixture(scope="module")
def undisturbed(cluster: UpCluster) -> list[list[int]]:
    """The token ids of each answer."""
    streams = cluster.new_streams(len(REQUESTS))
    asyncio.run(run(cluster, streams))
    return [stream.token_ids for stream in streams]


@pytest.mark.parametrize("role", ["punica_runner.worker", "punica_serve.cli runner", "punica_serve.cli scheduler"])
async def test_streams_go_on_when_a_process_is_killed(
    role: str, cluster: UpCluster, undisturbed: list[list[int]], until: Until
) -> None:
    streams = cluster.new_streams(len(REQUESTS))
    async with asyncio.TaskGroup() as group:
        group.create_task(run(cluster, streams))
        await until(lambda: all(len(stream.token_ids) >= 10 for stream in streams))
        cluster.kill(role)
        assert all(stream.finish_reason is None for stream in streams)
    assert [stream.token_ids for stream in streams] == undisturbed
    await until(lambda: cluster.num_gpus() == 2 and cluster.num_used_pages() == 0)


async def test_streams_go_on_when_memory_runs_out(
    small_cluster: UpCluster, undisturbed: list[list[int]], until: Until
) -> None:
    """Six requests grow to 26 pages each where 120 are: the newest give way, but never in circles."""
    streams = small_cluster.new_streams(len(REQUESTS))
    await run(small_cluster, streams, SHORT_REQUESTS)
    assert [stream.token_ids for stream in streams] == [token_ids[:NUM_SHORT] for token_ids in undisturbed]
    assert 1 <= small_cluster.num_evictions() <= 2 * len(REQUESTS)
    await until(lambda: small_cluster.num_used_pages() == 0)


async def test_a_killed_frontend_comes_back_and_its_requests_pages_too(cluster: UpCluster, until: Until) -> None:
    streams = cluster.new_streams(len(REQUESTS))
    running = asyncio.create_task(run(cluster, streams))
    await until(lambda: all(stream.token_ids for stream in streams))
    cluster.kill("punica_serve.cli frontend")
    with pytest.raises(ConnectionClosedError):
        await running
    await until(lambda: cluster.num_gpus() == 2 and cluster.num_used_pages() == 0)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_up_ends_every_process_and_tells_its_streams(
    own_cluster: UpCluster, signum: signal.Signals
) -> None:
    processes = own_cluster.processes()
    assert len(processes) == 5  # scheduler, runner, frontend, two workers
    body = {"prompt": "42", "stream": True, "ignore_eos": True, "max_tokens": 1000}
    async with (
        httpx.AsyncClient(base_url=own_cluster.url, timeout=100.0, trust_env=False) as http,
        http.stream("POST", "/v1/generate", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        assert '"finish_reason":null' in await anext(lines)
        own_cluster.up.send_signal(signum)
        last_event = [line async for line in lines if line.startswith("data: {")][-1]
    assert '"finish_reason":"error"' in last_event and '"code":"cluster_unavailable"' in last_event
    assert await asyncio.to_thread(own_cluster.up.wait, 100) == 0
    assert not alive(processes)


async def test_nothing_outlives_up_even_when_it_is_killed(own_cluster: UpCluster, until: Until) -> None:
    processes = own_cluster.processes()
    own_cluster.up.kill()
    await until(lambda: not alive(processes))
