"""The memory of a waiting request in the scheduler's process: many are added to a cluster without GPUs."""

import asyncio
import time
from pathlib import Path

import uvloop

from punica_serve.bench.control_plane.scheduler_process import SchedulerProcess
from punica_serve.errors import ProtocolError
from punica_serve.links.hello import dial
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AdapterRef,
    AddRequest,
    ClusterReply,
    FrontendHello,
    GetCluster,
    Request,
    SamplingParams,
    SchedulerToFrontend,
)

_TIMEOUT_S = 60.0
_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def bytes_per_queued_request(num_requests: int, folder: Path) -> float:
    """Excludes the prompt, which is a single token here. Raises ClusterUnavailable if there is no answer."""
    with SchedulerProcess(folder) as scheduler:
        scheduler.wait_until_it_listens()
        return uvloop.run(_measure(scheduler, num_requests))


async def _measure(scheduler: SchedulerProcess, num_requests: int) -> float:
    hello = FrontendHello(PROTOCOL_VERSION, scheduler.token, "frontend")
    async with dial(scheduler.url, hello, SchedulerToFrontend) as (channel, _):

        async def add(count: int, first: int) -> int:
            """Resident bytes of the process after queueing ``count`` more requests."""
            for number in range(first, first + count):
                adapter = AdapterRef(f"{number:064x}", f"/adapters/{number}", 1 << 24, dict.fromkeys(_MODULES, 16))
                request = Request(f"request-{number:032}", time.time_ns(), (1,), SamplingParams(seed=number), adapter)
                channel.send(AddRequest(number, request))
                if number % 1_000 == 0:
                    await asyncio.sleep(0)
            channel.send(GetCluster(0))
            async with asyncio.timeout(_TIMEOUT_S):
                while not isinstance(reply := await channel.receive(_TIMEOUT_S), ClusterReply):
                    pass
            if reply.cluster.queue_length != first + count:
                raise ProtocolError(f"{reply.cluster.queue_length} requests wait instead of {first + count}")
            return scheduler.figures.resident_bytes

        # The first thousand fill the allocator's pools and the scheduler's event log.
        before = await add(2_000, 0)
        return (await add(num_requests, 2_000) - before) / num_requests
