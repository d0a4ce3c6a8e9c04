"""Requests go where pages of their prompts are, and find their own again after a move. Three real workers on CPUs."""

import asyncio
from functools import partial
from typing import Any

import httpx
import pytest

from up_cluster import TIMEOUT_S, Start, Stream, Until, UpCluster

pytestmark = pytest.mark.slow

#: Thirteen pages of the demo, the last of them not full.
PROMPT = list(range(10, 110)) * 2
LONG = {"input_ids": PROMPT, "temperature": 0.8, "seed": 7, "ignore_eos": True, "max_tokens": 800}
THREE_GPUS = {"devices": ["cpu"] * 3}


class Gpus:
    """The cluster's GPUs, by UUID from the lowest up: of equal ones the highest gets a request."""

    def __init__(self, cluster: UpCluster) -> None:
        self._cluster = cluster
        self.uuids = sorted(gpu["gpu"]["uuid"] for gpu in cluster.snapshot()["gpus"])

    def drain(self, *uuids: str, drain: bool = True) -> None:
        for uuid in uuids:
            body = {"gpu": uuid, "drain": drain}
            url = f"{self._cluster.url}/v1/cluster/drain"
            httpx.post(url, json=body, timeout=TIMEOUT_S, trust_env=False).raise_for_status()

    def now(self, figure: str) -> dict[str, int]:
        """A figure of each GPU."""
        return {gpu["gpu"]["uuid"]: gpu[figure] for gpu in self._cluster.snapshot()["gpus"]}

    def working(self) -> list[str]:
        return [uuid for uuid, size in self.now("working_set").items() if size]

    def work_only_on(self, uuid: str) -> bool:
        return self.working() == [uuid]


async def complete(http: httpx.AsyncClient) -> int:
    """A short answer to the prompt; returns how many tokens of it were cached."""
    body = {"model": "numbers", "prompt": PROMPT, "max_tokens": 2, "temperature": 0}
    answer: dict[str, Any] = (await http.post("/v1/completions", json=body)).raise_for_status().json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_second_request_goes_to_the_gpu_with_the_pages_of_the_first(run_demo: Start) -> None:
    with run_demo(runner=THREE_GPUS) as cluster:
        gpus = Gpus(cluster)
        lowest, *others = gpus.uuids
        async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0, trust_env=False) as http:
            gpus.drain(*others)
            assert await complete(http) == 0
            gpus.drain(*others, drain=False)
            assert await complete(http) == len(PROMPT) // 16 * 16
        assert gpus.now("prefix_cache_hits") == {lowest: len(PROMPT) // 16 * 16, **dict.fromkeys(others, 0)}


async def test_a_request_that_moves_back_finds_its_own_pages(run_demo: Start, until: Until) -> None:
    """It begins on the lowest, moves to the highest, and back: the lowest alone knows its pages then."""
    with run_demo(runner=THREE_GPUS) as cluster:
        gpus, stream, undisturbed = Gpus(cluster), Stream(), Stream()
        lowest, middle, highest = gpus.uuids
        gpus.drain(middle, highest)
        running = asyncio.create_task(cluster.stream(LONG, stream))
        await until(lambda: len(stream.token_ids) > 16)
        gpus.drain(middle, highest, drain=False)
        for leaves, gets in ((lowest, highest), (highest, lowest)):
            gpus.drain(leaves)
            await until(partial(gpus.work_only_on, gets))
            gpus.drain(leaves, drain=False)
        await running
        hits = gpus.now("prefix_cache_hits")
        assert hits[lowest] >= len(PROMPT) // 16 * 16 and not hits[middle] and not hits[highest]
        assert cluster.counters()["migrations"] == 2
        await cluster.stream({**LONG, "cache_salt": "alone"}, undisturbed)
    assert stream.token_ids == undisturbed.token_ids and len(stream.token_ids) == LONG["max_tokens"]
