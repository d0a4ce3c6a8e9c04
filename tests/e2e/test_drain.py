"""A runner that is asked to stop, as a host's maintenance asks, while its requests run."""

import asyncio
import os
import signal
from typing import Any

import pytest

from process_tree import alive, command_line
from up_cluster import Until, UpCluster

pytestmark = pytest.mark.slow


REQUESTS = [
    {"prompt": "42", "lora_id": lora_id, "temperature": 0.8, "seed": seed, "ignore_eos": True, "max_tokens": 200}
    for seed in (1, 2)
    for lora_id in (None, "roman", "french")
]


async def keep_streaming(cluster: UpCluster, request: dict[str, Any], stop: asyncio.Event) -> int:
    """One stream after the other, each like the first, until told to stop; how many there were."""
    answers: list[list[int]] = []
    while not stop.is_set() or len(answers) < 2:
        (stream,) = cluster.new_streams(1)
        await cluster.stream(request, stream)
        answers.append(stream.token_ids)
        assert answers[-1] == answers[0]
    return len(answers)


def busy_runner(cluster: UpCluster) -> int | None:
    """The process id of the runner that has all requests, if one does."""
    for gpu in cluster.snapshot()["gpus"]:
        if gpu["working_set"] == len(REQUESTS):
            runners: list[int] = cluster.processes("punica_serve.cli runner")
            return next(pid for pid in runners if f"--runner-id {gpu['runner_id']} " in command_line(pid))
    return None


async def test_sigterm_to_a_runner_moves_its_requests(two_runners: UpCluster, until: Until) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        loops = [group.create_task(keep_streaming(two_runners, request, stop)) for request in REQUESTS]
        pids: list[int] = []

        def is_found() -> bool:
            pids.extend(filter(None, [busy_runner(two_runners)]))
            return bool(pids)

        await until(is_found)
        os.kill(pids[0], signal.SIGTERM)
        await until(lambda: not alive(pids[:1]))
        assert not any(loop.done() for loop in loops)
        stop.set()
    counters = two_runners.counters()
    assert counters["failed"] == 0 and counters["migrations"] > 0
    assert counters["gpus_lost"] == 0
