"""A supervisor as its tests run it: below a scheduler that only listens, above fake workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from punica_runner import supervisor
from punica_serve.config.cluster import ClusterConfig
from punica_serve.config.engine_section import EngineConfig
from punica_serve.config.links_section import LinksConfig
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.links import hello
from punica_serve.links.channel import Channel
from punica_serve.process.run import Drain
from punica_serve.protocol import AssignmentId, Request, SamplingParams, StartRequest, StepReport

TOKEN = "cluster token"
LINKS = LinksConfig(heartbeat_s=0.2, silence_s=3.0)
T = TypeVar("T")


class FakeScheduler:
    """Accepts one runner at a time, and keeps what it says and what it is to be told."""

    def __init__(self) -> None:
        self.url = ""
        self.hellos: list[Any] = []
        self.heard: list[Any] = []
        #: Links that have ended.
        self.num_ended = 0
        self.channel: Channel | None = None

    async def session(self, channel: Channel) -> None:
        self.hellos.append(await hello.accept(channel, token=TOKEN, incarnation=1))
        self.channel = channel
        await channel.serve(self.heard.append)
        self.num_ended += 1

    def tell(self, *messages: Any) -> None:
        assert self.channel is not None
        for message in messages:
            self.channel.send(message)

    def all(self, kind: type[T]) -> list[T]:
        return [message for message in self.heard if isinstance(message, kind)]

    def pids(self) -> list[int]:
        """A fake worker's tokens are its process id."""
        return [token_id for report in self.all(StepReport) for token_id in report.token_ids]


def config(num_devices: int = 1, **settings: Any) -> ClusterConfig:
    runner = RunnerConfig(devices=("cpu",) * num_devices, **{"ready_timeout_s": 60.0, **settings})
    return ClusterConfig(engine=EngineConfig(model=Path("none")), runner=runner, links=LINKS)


@asynccontextmanager
async def running(
    scheduler: FakeScheduler, *commands: list[str], drain: Drain | None = None, **settings: Any
) -> AsyncIterator["asyncio.Task[None]"]:
    """A supervisor of one worker for each command line; cancelled at the end."""
    serve = supervisor.serve(
        config(len(commands), **settings),
        TOKEN,
        runner_id="host",
        scheduler_url=scheduler.url,
        worker_command=lambda index: commands[index],
        drain=drain,
    )
    task = asyncio.create_task(serve)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "RESTART_BACKOFF_S", 0.05)
        patch.setattr(supervisor, "RESTART_BACKOFF_MAX_S", 0.2)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])


def start(seq: int, gpu_uuid: str = "CPU-a", request_id: str = "r") -> StartRequest:
    return StartRequest(gpu_uuid, seq, AssignmentId(1, seq), Request(request_id, 0, (1,), SamplingParams()))
