"""Adapters of a gigabyte, valid or not: what registering them costs a frontend's memory, and others' tokens."""

import asyncio
import math
import os
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from large_adapters import Upload, gigabyte_of
from memory_samples import sampled_memory
from token_gaps import TokenGaps, watched_tokens
from up_cluster import Start, UpCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MIB = 1 << 20
CONFIGS = Path(__file__).parents[2] / "configs"
LLAMA = Path(str(files("punica_serve.shapes"))) / "llama-2-7b"

#: Streams of others, and for how long they are watched while nothing else happens.
NUM_STREAMS = 8
IDLE_S = 5.0
#: A delay of ours comes every time; one of a busy machine does not.
NUM_TRIES = 3


@pytest.fixture
def simulated(tmp_path: Path, start: Start) -> Iterator[UpCluster]:
    """Two simulated GPUs that serve the shape of Llama 2 7B: adapters of a gigabyte are valid there."""
    document = yaml.safe_load((CONFIGS / "sim" / "live-16.yaml").read_text())
    document["runner"]["devices"] = ["simulated"] * 2
    document["simulation"] |= {"speed": 1.0}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(document))
    with start(tmp_path, str(tmp_path / "large.yaml")) as cluster:
        yield cluster
    shutil.rmtree(tmp_path / "data")  # gigabytes


@pytest.fixture
def demo(tmp_path: Path, run_demo: Start) -> Iterator[UpCluster]:
    with run_demo() as cluster:
        yield cluster
    shutil.rmtree(tmp_path / "data")


def frontend_pid(cluster: UpCluster) -> int:
    (pid,) = cluster.processes("punica_serve.cli frontend")
    return int(pid)


async def send(cluster: UpCluster, *uploads: Upload) -> list[tuple[int, str]]:
    sending = (asyncio.to_thread(upload.send, cluster.url, f"a{i}", {}) for i, upload in enumerate(uploads))
    return await asyncio.gather(*sending)


def uploads_of(kind: str, folder: Path, count: int) -> tuple[list[Upload], int, str]:
    """Uploads of a kind, and the status and words of their answers."""
    adapter = gigabyte_of(folder)
    match kind:
        case "valid":
            return [adapter.form(1.0 + i) for i in range(count)], 201, '"version":1'
        case "not finite":
            return [adapter.form(float("nan"))] * count, 400, "holds NaN or infinity"
        case _:
            return [adapter.bomb()] * count, 400, "its header is not a safetensors header"


@pytest.mark.parametrize(("count", "limit_bytes"), [(1, 64 * MIB), (4, 128 * MIB)])
@pytest.mark.parametrize("kind", ["valid", "not finite", "bomb"])
async def test_a_gigabyte_is_not_held_in_memory(simulated: UpCluster, kind: str, count: int, limit_bytes: int) -> None:
    uploads, status, words = uploads_of(kind, LLAMA, count)
    await send(simulated, Upload("application/zip", b"no archive", 0, b""))  # what the first one imports is not counted
    with sampled_memory(frontend_pid(simulated)) as samples:
        answers = await send(simulated, *uploads)

    assert [answer[0] for answer in answers] == [status] * count and words in answers[0][1], answers
    assert samples.growth_bytes <= limit_bytes, f"{samples.growth_bytes / MIB:.1f} MiB"


async def gaps_beside(
    cluster: UpCluster, request: dict[str, Any], uploads: list[Upload]
) -> tuple[TokenGaps, TokenGaps]:
    """Gaps between tokens of others: while nothing else happens, and while adapters are uploaded."""
    async with watched_tokens(cluster.stream_url, request=request, num_streams=NUM_STREAMS) as idle:
        await asyncio.sleep(IDLE_S)
    async with watched_tokens(cluster.stream_url, request=request, num_streams=NUM_STREAMS) as beside:
        await send(cluster, *uploads)
    return idle, beside


@pytest.mark.alone
async def test_others_tokens_come_as_evenly_as_without(simulated: UpCluster) -> None:
    """The frontend has cores of its own, and so do the workers and the clients."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 4:
        pytest.skip(f"the frontend, the workers and the clients need cores of their own; there are {len(cores)}")
    frontend = frontend_pid(simulated)
    for pid in [*simulated.processes(), os.getpid()]:
        pin(pid, set(cores[2:]) if pid == frontend else {cores[pid == os.getpid()]})
    request = {"input_ids": [5] * 16, "ignore_eos": True, "max_tokens": 1_000}
    uploads = uploads_of("valid", LLAMA, 4)[0]
    ratios: list[float] = []
    while len(ratios) < NUM_TRIES and min(ratios, default=math.inf) > 1.1:
        idle, beside = await gaps_beside(simulated, request, uploads)
        p99_idle, p99_beside = (np.percentile(gaps.gaps_s, 99) for gaps in (idle, beside))
        ratios.append(p99_beside / p99_idle)
    os.sched_setaffinity(0, cores)

    assert ratios[-1] <= 1.1, f"the p99 of the gaps beside uploads, over that without: {ratios}"


def pin(pid: int, cores: set[int]) -> None:
    """All threads of a process."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["not this model's", "bomb"])
async def test_the_demo_never_pauses(demo: UpCluster, kind: str) -> None:
    uploads = uploads_of("valid" if kind == "not this model's" else kind, LLAMA, 4)[0]
    request = {"prompt": "42", "ignore_eos": True, "max_tokens": 1_000, "temperature": 0.8}
    excess_s = []
    for _ in range(NUM_TRIES):
        idle, beside = await gaps_beside(demo, request, uploads)
        excess_s.append(beside.longest_s - idle.longest_s)
        if excess_s[-1] <= 0.1:
            return

    pytest.fail(f"the longest gap beside uploads is longer than without by {excess_s} s")
