"""Ten thousand clients that are there and say nothing: a real frontend process, and a process that holds them."""

import asyncio
import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from frontend_process import StartFrontend
from punica_frontend.http.listener import NUM_RESERVED_FILES
from punica_serve.protocol import Deliveries, Ending, Limits
from scripted_scheduler import ScriptedScheduler
from waits import until

log = logging.getLogger(__name__)

NUM_SOCKETS = 10_000
#: Resident memory; half of it was measured.
MAX_BYTES_PER_SOCKET = 64 << 10
TIMEOUT_S = 180.0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        resource.getrlimit(resource.RLIMIT_NOFILE)[1] < NUM_SOCKETS + NUM_RESERVED_FILES,
        reason="this machine allows too few open files",
    ),
]


async def num_websockets(client: httpx.AsyncClient) -> int:
    lines = (await client.get("/metrics")).text.splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("punica_websockets "))))


async def until_held(client: httpx.AsyncClient, num_sockets: int) -> None:
    async def are_held() -> bool:
        return await num_websockets(client) == num_sockets

    await until(are_held, f"{num_sockets} websockets are open", deadline_s=TIMEOUT_S)


async def answer(stream_url: str, scheduler: ScriptedScheduler) -> dict[str, Any]:
    """The only frame of a request, which the scheduler answers with one token."""
    num_before = len(scheduler.added)
    async with connect(stream_url, proxy=None) as websocket:
        await websocket.send(json.dumps({"op": "generate", "request_id": "r", "prompt": "42"}))
        await until(lambda: len(scheduler.added) > num_before)
        handle = scheduler.added[num_before].handle
        scheduler.send(Deliveries((handle,), (0,), (20,), endings=(Ending(handle, 1, "length"),)))
        frame: dict[str, Any] = json.loads(await asyncio.wait_for(websocket.recv(), TIMEOUT_S))
    return frame


async def test_ten_thousand_idle_websockets_are_held_and_disturb_nobody(
    start_frontend: StartFrontend, scheduler: ScriptedScheduler
) -> None:
    frontend = await start_frontend()
    scheduler.send(Limits(1, 1_000))
    async with httpx.AsyncClient(base_url=frontend.url, timeout=TIMEOUT_S, trust_env=False) as client:
        assert (await answer(frontend.stream_url, scheduler))["finish_reason"] == "length"
        before = frontend.resident_bytes
        script = str(Path(__file__).with_name("idle_client.py"))
        holder = await asyncio.create_subprocess_exec(
            *(sys.executable, script, str(frontend.port), str(NUM_SOCKETS)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert await asyncio.wait_for(holder.stdout.readline(), TIMEOUT_S) == b"holding\n"
            await until_held(client, NUM_SOCKETS)
            bytes_per_socket = (frontend.resident_bytes - before) / NUM_SOCKETS
            log.info("%.1f KiB of memory for each idle websocket", bytes_per_socket / 1024)
            assert bytes_per_socket < MAX_BYTES_PER_SOCKET
            assert (await answer(frontend.stream_url, scheduler))["finish_reason"] == "length"
        finally:
            holder.kill()
            await holder.wait()
        await until_held(client, 0)
        assert (await answer(frontend.stream_url, scheduler))["finish_reason"] == "length"
