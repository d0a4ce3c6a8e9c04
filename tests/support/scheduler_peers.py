"""A scheduler's server on loopback, and peers that say what a test makes them say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from punica_scheduler import server
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.scheduler_section import SchedulerConfig
from punica_serve.links.channel import Channel
from punica_serve.links.hello import dial
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AddRequest,
    ClusterReply,
    ClusterSnapshot,
    Deliveries,
    Ending,
    FrontendHello,
    GetCluster,
    GpuInfo,
    GpuJoined,
    Request,
    RunnerHello,
    SamplingParams,
    SchedulerToFrontend,
    SchedulerToRunner,
    StartRequest,
    StepReport,
)
from waits import DEADLINE_S

TOKEN = "cluster token"


def config(**scheduler: Any) -> ClusterConfig:
    settings = {"port": 0, "settle_s": 0, **scheduler}
    return ClusterConfig(engine=EngineConfig(model=Path("model")), scheduler=SchedulerConfig(**settings))


class Peers:
    """Dials the scheduler under test; the links end with the test."""

    def __init__(self, url: str, links: AsyncExitStack) -> None:
        self._url = url
        self._links = links

    async def frontend(
        self, frontend_id: str = "frontend", *, token: str = TOKEN, major: int = PROTOCOL_VERSION[0]
    ) -> Channel:
        return await self._dial(FrontendHello((major, 0), token, frontend_id), SchedulerToFrontend)

    async def runner(
        self, runner_id: str = "runner", *, gpus: tuple[str, ...] = (), instance: str = "process 1"
    ) -> Channel:
        channel = await self._dial(RunnerHello(PROTOCOL_VERSION, TOKEN, runner_id, instance), SchedulerToRunner)
        for uuid in gpus:
            channel.send(GpuJoined(gpu(uuid)))
        return channel

    async def _dial(self, hello: FrontendHello | RunnerHello, union: Any) -> Channel:
        channel, _ = await self._links.enter_async_context(dial(self._url, hello, union))
        return channel


@asynccontextmanager
async def serving(cluster: ClusterConfig) -> AsyncIterator[Peers]:
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(server.serve(cluster, TOKEN, on_listening=port.set_result))
    try:
        async with asyncio.timeout(DEADLINE_S):
            url = f"ws://127.0.0.1:{await port}"
        async with AsyncExitStack() as links:
            yield Peers(url, links)
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=DEADLINE_S)
        assert task.cancelled()


def gpu(uuid: str, *, num_kv_pages: int = 8) -> GpuInfo:
    return GpuInfo(uuid, "cpu", 4, 16, num_kv_pages, {})


def request(request_id: str = "r1", *, prompt: int = 3) -> Request:
    return Request(request_id, 1, (5,) * prompt, SamplingParams())


def report(start: StartRequest, *token_ids: int, is_last: bool = False) -> StepReport:
    incarnation, counter = start.assignment
    return StepReport(
        gpu_uuid=start.gpu_uuid,
        epoch=0,
        step=1,
        applied_seq=start.seq,
        incarnation=incarnation,
        assignments=(counter,) * len(token_ids),
        positions=tuple(range(len(token_ids))),
        token_ids=token_ids,
        finished=((counter, "stop"),) if is_last else (),
        free_kv_pages=8,
        batch_size=len(token_ids),
        num_prefill_tokens=0,
        num_adapters=0,
        duration_s=0.01,
    )


def add(request: Request, handle: int = 0) -> AddRequest:
    return AddRequest(handle, request)


async def receive(channel: Channel) -> Any:
    return await channel.receive(DEADLINE_S)


async def next_ending(frontend: Channel) -> Ending:
    """The end of the request that ends next; what else arrives before is skipped."""
    while not (isinstance(message := await receive(frontend), Deliveries) and message.endings):
        pass
    return message.endings[0]


async def cluster_of(frontend: Channel) -> ClusterSnapshot:
    """Asks for the cluster; what else arrives meanwhile is skipped."""
    frontend.send(GetCluster(9))
    while not isinstance(reply := await receive(frontend), ClusterReply):
        pass
    assert reply.call_id == 9
    return reply.cluster


async def cluster_when(frontend: Channel, condition: Callable[[ClusterSnapshot], bool]) -> ClusterSnapshot:
    async with asyncio.timeout(DEADLINE_S):
        while not condition(cluster := await cluster_of(frontend)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return cluster


async def has_ended(channel: Channel) -> bool:
    messages: list[Any] = []
    async with asyncio.timeout(DEADLINE_S):
        await channel.serve(messages.append)
    return not messages
