"""Several runners and frontends on one machine."""

import asyncio
import os
import signal

import httpx
import pytest

from process_tree import alive
from up_cluster import Until, UpCluster

pytestmark = pytest.mark.slow


def answers(url: str) -> bool:
    body = {"prompt": "42", "lora_id": "roman"}
    try:
        answer = httpx.post(f"{url}/v1/generate", json=body, timeout=60.0, trust_env=False)
    except httpx.TransportError:
        return False
    return answer.is_success and bool(answer.json()["text"] == "XLII")


async def test_every_process_serves_comes_back_and_ends_at_ctrl_c(wide_cluster: UpCluster, until: Until) -> None:
    assert len(wide_cluster.urls) == 2
    assert all(map(answers, wide_cluster.urls))

    for role in ("runner", "frontend"):
        processes = wide_cluster.processes(f"punica_serve.cli {role}")
        assert len(processes) == 2
        os.kill(processes[0], signal.SIGKILL)
        await until(lambda: all(map(answers, wide_cluster.urls)) and wide_cluster.num_gpus() == 4)
    await until(lambda: len(wide_cluster.processes()) == 9)  # scheduler, two runners of two workers, two frontends

    processes = wide_cluster.processes()
    wide_cluster.up.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(wide_cluster.up.wait, 100) == 0
    assert not alive(processes)
