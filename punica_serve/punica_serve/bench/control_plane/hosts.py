"""Plays the runners: one link per host, and GPUs that give each of their requests a token at every step.

As with real ones, the GPUs of a host step at different times.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from punica_serve.bench.control_plane.settings import GPUS_PER_RUNNER, NUM_KV_PAGES, PAGE_SIZE, LoadSettings, stamp
from punica_serve.errors import ClusterUnavailable
from punica_serve.links.channel import Channel
from punica_serve.links.hello import dial
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    EndReason,
    GpuInfo,
    GpuJoined,
    LoraGroup,
    RowHeaderEncoder,
    RunnerHello,
    SchedulerToRunner,
    StartRequest,
    StepReport,
    StopRequest,
)

#: Bytes that the scheduler may leave unread: more than a host's GPUs make in a step.
MAX_QUEUED_BYTES = 4 << 10

#: Steps take this many times as long until the cluster is full, so that filling it does not take minutes.
FILLING_SLOWDOWN = 20

_LORA_PAGES: dict[LoraGroup, int] = dict.fromkeys(("qkv", "o", "gate_up", "down"), 1 << 20)


@dataclass(slots=True)
class Gpu:
    """A GPU and its requests, as one column per field of its next report."""

    info: GpuInfo
    incarnation: int
    applied_seq: int = 0
    num_steps: int = 0
    row_headers: RowHeaderEncoder = field(default_factory=RowHeaderEncoder)
    counters: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    #: The position after each request's last token.
    ends: list[int] = field(default_factory=list)

    def start(self, command: StartRequest) -> None:
        self.applied_seq = command.seq
        self.counters.append(command.assignment.counter)
        self.positions.append(len(command.request.generated_ids))
        self.ends.append(command.request.sampling.max_tokens)

    def stop(self, command: StopRequest) -> None:
        self.applied_seq = command.seq
        if command.assignment.counter in self.counters:
            self._drop({command.assignment.counter})

    def step(self) -> StepReport:
        """Generates each request's next token, whose id encodes the time."""
        self.num_steps += 1
        num_rows = len(self.counters)
        report_counters, report_positions = tuple(self.counters), tuple(self.positions)
        self.positions = [position + 1 for position in report_positions]
        ended = [
            counter
            for counter, position, end in zip(self.counters, self.positions, self.ends, strict=True)
            if position == end
        ]
        finished: tuple[tuple[int, EndReason], ...] = tuple((counter, "length") for counter in ended)
        if ended:
            self._drop(set(ended))
        report = StepReport(
            gpu_uuid=self.info.uuid,
            epoch=0,
            step=self.num_steps,
            applied_seq=self.applied_seq,
            incarnation=self.incarnation,
            assignments=report_counters,
            positions=report_positions,
            token_ids=(stamp(time.monotonic()),) * num_rows,
            finished=finished,
            free_kv_pages=NUM_KV_PAGES - 32 * len(self.counters),
            batch_size=num_rows,
            num_prefill_tokens=0,
            num_adapters=num_rows,
            duration_s=0.03,
        )
        return self.row_headers.encode(report)

    def _drop(self, counters: set[int]) -> None:
        rows = [row for row in zip(self.counters, self.positions, self.ends, strict=True) if row[0] not in counters]
        self.counters = [row[0] for row in rows]
        self.positions = [row[1] for row in rows]
        self.ends = [row[2] for row in rows]


@dataclass(slots=True)
class StepPace:
    """The current duration of a step."""

    step_s: float


async def main(load: LoadSettings, on_ready: Callable[[Callable[[], Any]], None]) -> None:
    """Runs all hosts: slowly while the cluster is filled, and at full speed from the first look on."""
    settings = load.settings
    num_hosts = -(-settings.num_gpus // GPUS_PER_RUNNER)
    pace = StepPace(FILLING_SLOWDOWN * settings.step_s)

    def look() -> None:
        pace.step_s = settings.step_s

    joined = asyncio.Barrier(num_hosts + 1)
    async with asyncio.TaskGroup() as tasks:
        for host in range(num_hosts):
            uuids = [f"GPU-{index:05}" for index in range(host * GPUS_PER_RUNNER, (host + 1) * GPUS_PER_RUNNER)]
            tasks.create_task(_run_host(load, host, uuids[: settings.num_gpus - host * GPUS_PER_RUNNER], joined, pace))
        await joined.wait()
        on_ready(look)


async def _run_host(load: LoadSettings, host: int, uuids: list[str], joined: asyncio.Barrier, pace: StepPace) -> None:
    hello = RunnerHello(PROTOCOL_VERSION, load.token, f"host-{host:03}", uuid.uuid4().hex)
    async with dial(load.scheduler_url, hello, SchedulerToRunner) as (channel, welcome):
        gpus = {}
        for name in uuids:
            info = GpuInfo(name, "simulated", load.settings.batch_size, PAGE_SIZE, NUM_KV_PAGES, _LORA_PAGES)
            gpus[name] = Gpu(info, welcome.incarnation)
            channel.send(GpuJoined(info))
        await joined.wait()
        async with asyncio.TaskGroup() as tasks:
            for index, gpu in enumerate(gpus.values()):
                # Irrational, so that no two GPUs step at the same time for long.
                phase = (host * GPUS_PER_RUNNER + index) * 0.6180339887 % 1.0
                tasks.create_task(_keep_stepping(channel, gpu, pace, phase))
            await channel.serve(partial(_obey, gpus))
            raise ClusterUnavailable(f"host {host} lost its link to the scheduler: {channel.end_reason}")


def _obey(gpus: dict[str, Gpu], command: Any) -> None:
    if isinstance(command, StartRequest):
        gpus[command.gpu_uuid].start(command)
    elif isinstance(command, StopRequest):
        gpus[command.gpu_uuid].stop(command)


async def _keep_stepping(channel: Channel, gpu: Gpu, pace: StepPace, phase: float) -> None:
    """Steps at fixed times, except those that this process is too late for or the scheduler has no time for.

    Then a smaller load is measured, as the table shows.
    """
    next_s = time.monotonic() + phase * pace.step_s
    while True:
        now_s = time.monotonic()
        await asyncio.sleep(next_s - now_s)
        next_s = max(next_s + pace.step_s, now_s)
        if gpu.counters and channel.num_queued_bytes < MAX_QUEUED_BYTES:
            channel.send(gpu.step(), may_wait=True)
