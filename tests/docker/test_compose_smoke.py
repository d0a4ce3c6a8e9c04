"""`docker compose up` as a newcomer has it: images built, answers through five adapters, containers that die, down.

`make compose-smoke` runs it. Minutes, the first time many: torch is downloaded.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import httpx
import pytest

from compose_cluster import ComposeCluster, built, docker, has_engine, size_bytes
from punica_serve.demo.asking import rest, websocket
from punica_serve.demo.notations import NOTATIONS, expected
from waits import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(not has_engine(), reason="no Docker engine answers, or there is no Compose"),
]

TIMEOUT_S = 180.0
MAX_CONTROL_BYTES = 250_000_000

REQUESTS = [
    {"prompt": "42", "lora_id": lora_id, "temperature": 0.8, "seed": 7, "ignore_eos": True, "max_tokens": 900}
    for lora_id in (None, *NOTATIONS)
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ComposeCluster]:
    with built() as cluster:
        cluster.compose("up", "--detach", "--no-build")
        asyncio.run(until_whole(cluster))
        yield cluster


@pytest.fixture
async def client(cluster: ComposeCluster) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, trust_env=False) as client:
        yield client


async def until_whole(cluster: ComposeCluster) -> None:
    await until(lambda: asyncio.to_thread(cluster.is_whole), deadline_s=TIMEOUT_S, describe=cluster.logs)


def test_the_control_image_is_small_and_has_no_torch(cluster: ComposeCluster) -> None:
    added = size_bytes("punica-serve-control:local") - size_bytes("python:3.11-slim")
    assert added < MAX_CONTROL_BYTES
    find = "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is not None)"
    docker("run", "--rm", "--entrypoint", "python", "punica-serve-control:local", "-c", find)


def test_every_process_is_a_nobody_who_can_write_nothing(cluster: ComposeCluster) -> None:
    for service in ("frontend", "scheduler", "runner", "proxy"):
        for container in cluster.containers(service):
            assert docker("exec", container, "id", "-u") != "0"
            write = "touch /usr/local/bin/x 2>/dev/null && echo written; grep CapEff /proc/self/status"
            assert docker("exec", container, "sh", "-c", write).split() == ["CapEff:", "0" * 16]


async def test_five_adapters_answer_over_rest_and_websocket(cluster: ComposeCluster, client: httpx.AsyncClient) -> None:
    async with websocket(cluster.url) as over_websocket:
        asks = [ask(lora_id, 42) for ask in (rest(client), over_websocket) for lora_id in NOTATIONS]
        assert await asyncio.gather(*asks) == [expected(lora_id, 42) for lora_id in NOTATIONS] * 2


async def test_both_frontends_write_the_one_registry(cluster: ComposeCluster, client: httpx.AsyncClient) -> None:
    """Twenty changes at once, through whichever of them: none is lost, and each sees all."""
    names = {f"tenant-{index}" for index in range(20)}
    answers = await asyncio.gather(*(client.put(f"/v1/tenants/{name}", json={}) for name in names))
    assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
    code = "import urllib.request as http; print(http.urlopen('http://127.0.0.1:8000/v1/tenants').read().decode())"

    def sees_all(container: str) -> bool:
        seen = docker("exec", container, "python", "-c", code)
        return all(f'"{name}"' in seen for name in names)

    for container in cluster.containers("frontend"):
        await until(partial(asyncio.to_thread, sees_all, container), f"{container} sees all tenants")


async def test_streams_go_on_when_a_runner_dies(cluster: ComposeCluster) -> None:
    runners = cluster.containers("runner")
    undisturbed: list[list[int]] = [[] for _ in REQUESTS]
    await asyncio.gather(*map(cluster.stream, REQUESTS, undisturbed))
    streams: list[list[int]] = [[] for _ in REQUESTS]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(cluster.stream(*pair)) for pair in zip(REQUESTS, streams, strict=True)]
        await until(lambda: all(len(token_ids) >= 10 for token_ids in streams))
        cluster.signal_all(cluster.runner_at_work(runners), "KILL")
        assert not any(task.done() for task in tasks)
    assert streams == undisturbed
    await until_whole(cluster)


async def test_a_frontend_that_is_told_to_stop_finishes_and_nobody_is_refused(
    cluster: ComposeCluster, client: httpx.AsyncClient
) -> None:
    stopped = cluster.containers("frontend")
    token_ids: list[int] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.stream({**REQUESTS[0], "max_tokens": 300}, token_ids))
        await until(lambda: len(token_ids) >= 10)
        stopping = group.create_task(asyncio.to_thread(docker, "stop", "--time", "60", stopped[0]))
        while not stopping.done():
            answer = await client.post("/v1/generate", json={"prompt": "42", "lora_id": "roman", "max_tokens": 32})
            assert answer.status_code == 200, answer.text
    assert len(token_ids) == 300
    docker("start", stopped[0])
    await until_whole(cluster)


async def test_a_frozen_runner_is_killed_by_its_health_check_and_starts_again(cluster: ComposeCluster) -> None:
    container = cluster.containers("runner")[0]
    restarts = num_restarts(container)
    cluster.signal_all(container, "STOP")
    await until(lambda: num_restarts(container) > restarts, "the health check kills it")
    await until_whole(cluster)


def num_restarts(container: str) -> int:
    return int(docker("inspect", "--format", "{{.RestartCount}}", container))
