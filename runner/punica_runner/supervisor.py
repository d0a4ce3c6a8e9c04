"""The host's main process: keeps one worker alive for each device, and connects them to the scheduler.

It decides nothing about requests. After any death or lost link both ends start from nothing: a restarted worker joins
as an empty GPU, and a new link finds all workers reset. So nothing has to be reconciled.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Never

from punica_runner.host_disk import HostDisk, cache_folder, open_cache
from punica_runner.worker_process import WorkerDied, WorkerProcess, run_worker
from punica_runner.worker_tiers import WorkerTiers
from punica_serve.adapters.expected_rank import batch_of, engine_of
from punica_serve.config.cluster import ClusterConfig
from punica_serve.errors import ConfigError, ProtocolError
from punica_serve.links.backoff import Backoff
from punica_serve.links.channel import Channel
from punica_serve.links.hello import keep_dialling
from punica_serve.links.ssl_context import client_context
from punica_serve.process.logs import about, named
from punica_serve.process.module_command import module_command
from punica_serve.process.readiness import READY, notify
from punica_serve.process.run import Drain
from punica_serve.process.tracing import check_exporter
from punica_serve.protocol import (
    PROTOCOL_VERSION,
    AdaptersCached,
    AssignmentsFailed,
    DrainRunner,
    FetchAdapter,
    Forget,
    GpuJoined,
    GpuLost,
    RowHeaderEncoder,
    RunnerDrained,
    RunnerHello,
    SchedulerToRunner,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    Welcome,
)

log = logging.getLogger(__name__)

#: A dead worker restarts after the first backoff. It doubles at every death up to the maximum, and starts over once a
#: worker has lived for BACKOFF_RESET_S.
RESTART_BACKOFF_S = 0.5
RESTART_BACKOFF_MAX_S = 30.0
BACKOFF_RESET_S = 60.0

#: Returns the command line of the worker with this index among the devices.
WorkerCommand = Callable[[int], Sequence[str]]


async def serve(
    config: ClusterConfig,
    token: str,
    *,
    runner_id: str,
    scheduler_url: str,
    worker_command: WorkerCommand | None = None,
    drain: Drain | None = None,
) -> None:
    """Runs the host until cancelled; then stops its workers within ``runner.stop_timeout_s`` and leaves none behind.

    When ``drain`` asks for it, it asks the scheduler to move its requests, continues until that is done, and returns.

    Raises ConfigError if its workers could not export their traces. Raises it in a task group's exception if a worker
    says that a restart can't help before any has been ready, or if two of the devices are the same.
    """
    check_exporter(config.tracing.otlp_endpoint)
    tls = client_context(config.tls) if config.tls else None
    supervisor = Supervisor(config)
    command = worker_command or (lambda index: engine_worker_command(config, runner_id, index))

    instance = uuid.uuid4().hex

    def hello() -> RunnerHello:
        return RunnerHello(PROTOCOL_VERSION, token, runner_id, instance)

    async with contextlib.aclosing(supervisor), asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(supervisor.keep_worker(index, command(index)))
            for index in range(len(config.runner.workers))
        ]
        running.append(
            tasks.create_task(
                keep_dialling(scheduler_url, hello, SchedulerToRunner, supervisor.session, config.links, tls)
            )
        )
        notify(READY)
        if drain is not None:
            await drain.wanted()
            await supervisor.drain()
            for task in running:
                task.cancel()


def engine_worker_command(config: ClusterConfig, runner_id: str, index: int) -> Sequence[str]:
    return (
        *module_command("punica_runner.worker"),
        *("--engine-config", engine_of(config).model_dump_json()),
        *("--batch-limit", batch_of(config).limit),
        *("--simulation", config.simulation.model_dump_json()),
        *("--runner-config", config.runner.model_dump_json()),
        *("--device", config.runner.workers[index]),
        *("--runner-id", runner_id),
        *("--index", str(index)),
        *("--cache-folder", str(cache_folder(config))),
        *("--cache-bytes", str(config.store.cache_bytes)),
        *("--log-level", logging.getLevelName(log.getEffectiveLevel()).lower()),
        *("--log-format", config.log.format.value),
        *(("--otlp-endpoint", config.tracing.otlp_endpoint) if config.tracing.otlp_endpoint else ()),
    )


class Supervisor:
    """The workers that are ready, their adapters' files, and the link to the scheduler while there is one."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config.runner
        cache = open_cache(config, self._report_disk)
        self._disk = HostDisk(cache, timeout_s=config.runner.fetch_timeout_s)
        self._workers: dict[str, WorkerProcess] = {}  # by GPU UUID
        #: One for each device, whether its worker is ready or not.
        has_host_memory = config.engine.host_cache_bytes != 0
        self._tiers = [WorkerTiers(has_host_memory=has_host_memory) for _ in self._config.workers]
        self._channel: Channel | None = None
        #: Some worker has been ready, so the configuration is right, and a restart may help after any later failure.
        self._was_ready = False
        self._is_draining = False
        #: The scheduler has moved all requests, or the link has ended and with it all assignments.
        self._is_drained = asyncio.Event()

    async def keep_worker(self, index: int, command: Sequence[str]) -> None:
        """Runs a worker, and restarts it when it dies, until cancelled. Raises ConfigError if a restart can't help."""
        config = self._config
        name = f"worker {index} ({config.workers[index]})"
        backoff = Backoff(RESTART_BACKOFF_S, RESTART_BACKOFF_MAX_S, reset_after_s=BACKOFF_RESET_S)
        has_died = False
        while True:
            ready_at: float | None = None
            try:
                async with run_worker(command, config, self._tiers[index]) as worker:
                    ready_at = time.monotonic()
                    await self._serve_worker(name, worker, is_back=has_died)
            except WorkerDied as death:
                if death.is_permanent and not self._was_ready:
                    raise ConfigError(f"{name} can't run: {death}") from None
                wait_s = backoff.after(0.0 if ready_at is None else time.monotonic() - ready_at)
                has_died = True
                self._tiers[index].died(time.monotonic())
                log.warning("%s died: %s; restarting it in %.1f s", name, death, wait_s)
            await asyncio.sleep(wait_s)

    async def session(self, channel: Channel, _: Welcome) -> None:
        """Serves one link to the scheduler: all GPUs join empty, then commands are passed to their workers."""
        self._channel = channel
        self._reset_workers()
        try:
            for worker in self._workers.values():
                channel.send(GpuJoined(worker.gpu))
            channel.send(self._disk.holdings())
            await channel.serve(self._dispatch)
        finally:
            self._channel = None
            self._reset_workers()
            if self._is_draining:
                self._is_drained.set()

    async def drain(self) -> None:
        """Returns when no request runs here any more. Until then the workers continue, but no further worker joins."""
        self._is_draining = True
        if self._channel is not None:
            log.info("draining: requests move to other runners")
            self._channel.send(DrainRunner())
            await self._is_drained.wait()

    async def aclose(self) -> None:
        """Cancels all fetches."""
        await self._disk.close()

    async def _serve_worker(self, name: str, worker: WorkerProcess, *, is_back: bool) -> Never:
        """Passes on a worker's messages until it dies; raises WorkerDied."""
        self._join(name, worker, is_back=is_back)
        row_headers = RowHeaderEncoder()
        try:
            while True:
                message = await worker.receive()
                if isinstance(message, FetchAdapter):
                    self._disk.fetch(message.adapter, worker.tell)
                elif isinstance(message, StepReport):
                    self._send(row_headers.encode(message))
                else:
                    self._send(message)
        except WorkerDied as death:
            self._send(GpuLost(worker.gpu.uuid, str(death)))
            raise
        finally:
            del self._workers[worker.gpu.uuid]

    def _join(self, name: str, worker: WorkerProcess, *, is_back: bool) -> None:
        uuid = worker.gpu.uuid
        taken = {gpu: other.gpu.name for other in self._workers.values() for gpu in other.gpu.rank_uuids}
        if twice := taken.keys() & set(worker.gpu.rank_uuids):
            gpu = min(twice)
            raise ConfigError(
                f"{name} can't run: {taken[gpu]} has its GPU ({gpu}) already; name each device once in runner.devices",
                param="runner.devices",
            )
        self._workers[uuid] = worker
        self._was_ready = True
        # The restart is as important as the death was.
        log.log(logging.WARNING if is_back else logging.INFO, "%s is ready as GPU %s (%s)", name, worker.gpu.name, uuid)
        if not self._is_draining:
            self._send(GpuJoined(worker.gpu))

    def _report_disk(self, came: frozenset[str], left: frozenset[str]) -> None:
        self._send(AdaptersCached(None, tuple(sorted(came)), tuple(sorted(left))))

    def _send(self, message: GpuJoined | GpuLost | StepReport | AssignmentsFailed | AdaptersCached) -> None:
        """Sends to the scheduler. Without a link the message is dropped: the next link starts from nothing anyway."""
        if self._channel is not None:
            self._channel.send(message, may_wait=isinstance(message, StepReport))

    def _dispatch(self, message: object) -> None:
        match message:
            case RunnerDrained():
                self._is_drained.set()
            case Forget(digest):
                for tiers in self._tiers:
                    tiers.forget(digest)
                for worker in self._workers.values():
                    worker.tell(message)
                self._disk.evict(digest)
            case StartRequest(gpu_uuid) | StopRequest(gpu_uuid):
                # A worker that died meanwhile needs no command: the scheduler will learn of its loss.
                if gpu_uuid in self._workers:
                    _log_start(message, self._workers[gpu_uuid].gpu.name)
                    self._workers[gpu_uuid].send(message)
            case Warm(gpu_uuid):
                if gpu_uuid in self._workers:
                    self._workers[gpu_uuid].tell(message)
            case _:
                raise ProtocolError(f"the scheduler sent {type(message).__name__} after the handshake")

    def _reset_workers(self) -> None:
        for worker in self._workers.values():
            worker.reset()


def _log_start(message: StartRequest | StopRequest, gpu_name: str) -> None:
    if log.isEnabledFor(logging.DEBUG) and isinstance(message, StartRequest):
        log.debug("request passed on", extra=about(**named(message.request), gpu=gpu_name))
