"""A worker process as its supervisor sees it: started, ready, reporting, dead."""

import asyncio
import contextlib
import logging
import os
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from typing import Any

from punica_runner.pipes import SupervisorPipe
from punica_runner.watchdog import Watchdog
from punica_runner.worker_tiers import PREFETCH_TIMEOUT_S, WorkerTiers
from punica_serve.config.runner_section import RunnerConfig
from punica_serve.errors import ProtocolError
from punica_serve.process.death_reason import death_reason
from punica_serve.protocol import (
    AdapterFetched,
    AdaptersCached,
    AssignmentsFailed,
    FetchAdapter,
    Forget,
    GpuInfo,
    Pong,
    Reset,
    StartRequest,
    StepReport,
    StopRequest,
    Warm,
    WorkerFailed,
    WorkerReady,
    WorkerToSupervisor,
)

log = logging.getLogger(__name__)

#: Longest time between the end of a worker's pipe and the end of its process, in either order.
EXIT_GRACE_S = 1.0

_STDERR = 2


class WorkerDied(Exception):
    """A worker has ended, or must be killed. The message says why."""

    def __init__(self, message: str, *, is_permanent: bool = False) -> None:
        super().__init__(message)
        #: The worker said that a restart can't help.
        self.is_permanent = is_permanent


class WorkerProcess:
    """A ready worker. ``run_worker`` makes and ends it."""

    def __init__(self, gpu: GpuInfo, connection: "_Connection", watchdog: Watchdog, tiers: WorkerTiers) -> None:
        self.gpu = gpu
        self._connection = connection
        self._watchdog = watchdog
        self._tiers = tiers
        #: Its host memory has changed.
        self._has_loaded = asyncio.Event()
        #: Counts Resets. Reports of an earlier epoch are about assignments that a Reset has dropped.
        self._epoch = 0
        #: Number of the newest command since the GPU joined.
        self._last_seq = 0

    def reset(self) -> None:
        """Drops all assignments. Commands count from 1 again."""
        self._epoch += 1
        self._last_seq = 0
        self._connection.pipe.send(Reset(self._epoch))

    def send(self, command: StartRequest | StopRequest) -> None:
        """Passes a command on, without ever waiting.

        Commands are numbered from 1 at every join. If the first one has a higher number, it was meant for the worker
        before its restart, and is dropped.
        """
        if self._last_seq == 0 and command.seq != 1:
            return
        self._last_seq = command.seq
        if isinstance(command, StartRequest) and command.request.adapter is not None:
            self._tiers.used(command.request.adapter)
        self._connection.pipe.send(command)

    def tell(self, message: Warm | Forget | AdapterFetched) -> None:
        """Passes on a message that concerns no assignment, without ever waiting."""
        if isinstance(message, Warm):
            self._tiers.named(message.adapter)
        self._connection.pipe.send(message)

    async def receive(self) -> StepReport | AssignmentsFailed | AdaptersCached | FetchAdapter:
        """The next message, except reports of earlier epochs.

        Raises WorkerDied, also after the watchdog has killed the worker. Messages about its host memory have no epoch:
        after a Reset the worker reports it all again.
        """
        while True:
            message = await self._connection.receive()
            match message:
                case Pong():
                    self._watchdog.answered(message)
                case StepReport() | AssignmentsFailed():
                    if message.epoch == self._epoch:
                        if isinstance(message, StepReport) and message.resident is not None:
                            self._tiers.resident(message.resident, time.monotonic())
                        return message
                case AdaptersCached():
                    self._tiers.cached(message.came, message.left, time.monotonic())
                    self._has_loaded.set()
                    return message
                case FetchAdapter():
                    return message
                case _:
                    raise WorkerDied(f"it sent {type(message).__name__} after it was ready")

    async def restore(self) -> None:
        """Prefetches in the background what the worker before it held. ``receive`` must run: it hears of progress."""
        while self._tiers.has_lost:
            self._has_loaded.clear()
            for ref, for_device in self._tiers.next_prefetches(time.monotonic()):
                self.tell(Warm(self.gpu.uuid, ref, host_only=not for_device))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PREFETCH_TIMEOUT_S):
                    await self._has_loaded.wait()

    async def watch(self) -> None:
        """Pings the worker, and kills it if its answers show a stall. ``receive`` must run, because it gets them."""
        while (verdict := self._watchdog.verdict()) is None:
            self._connection.pipe.send(self._watchdog.ping())
            await asyncio.sleep(self._watchdog.interval_s)
        self._connection.kill(verdict)


@contextlib.asynccontextmanager
async def run_worker(command: Sequence[str], config: RunnerConfig, tiers: WorkerTiers) -> AsyncIterator[WorkerProcess]:
    """Starts a worker and waits until it is ready; leaves no process behind at the end.

    ``tiers`` has what the worker before it held on this device. The file descriptors of its pipes are appended to
    ``command``: ``--read-fd N --write-fd M``. Raises WorkerDied if the worker is not ready in time or ends before.
    """
    process, pipe = await _start(command)
    connection = _Connection(process, pipe)
    watchdog = Watchdog(silence_timeout_s=config.silence_timeout_s, step_timeout_s=config.step_timeout_s)
    tasks = [asyncio.create_task(connection.end_with_process())]
    try:
        gpu = await connection.ready(config.ready_timeout_s)
        tiers.restart()
        worker = WorkerProcess(gpu, connection, watchdog, tiers)
        tasks += [asyncio.create_task(worker.watch()), asyncio.create_task(worker.restore())]
        yield worker
    finally:
        for task in tasks:
            task.cancel()
        pipe.close()
        await _stop(process, config.stop_timeout_s)


async def _start(command: Sequence[str]) -> tuple[Process, SupervisorPipe]:
    their_read, our_write = os.pipe()
    our_read, their_write = os.pipe()
    pipe = await SupervisorPipe.open(our_read, our_write, WorkerToSupervisor)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            *("--read-fd", str(their_read), "--write-fd", str(their_write)),
            pass_fds=(their_read, their_write),
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            stdin=DEVNULL,
            stdout=_STDERR,
        )
    except BaseException:
        pipe.close()
        raise
    finally:
        os.close(their_read)
        os.close(their_write)
    return process, pipe


async def _stop(process: Process, timeout_s: float) -> None:
    """Asks the process to end, and kills it after the timeout or when this task is cancelled."""
    try:
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            async with asyncio.timeout(timeout_s):
                process.terminate()
                await process.wait()
    finally:
        if process.returncode is None:
            log.warning("worker process %d did not stop within %g s and is killed", process.pid, timeout_s)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


class _Connection:
    """A worker's process and pipe; it explains in words why they ended."""

    def __init__(self, process: Process, pipe: SupervisorPipe) -> None:
        self.process = process
        self.pipe = pipe
        #: Why the supervisor killed the process.
        self._verdict: str | None = None

    async def ready(self, timeout_s: float) -> GpuInfo:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self.receive()
        except TimeoutError:
            raise WorkerDied(f"it was not ready within {timeout_s:g} s") from None
        if not isinstance(message, WorkerReady):
            raise WorkerDied(f"it sent {type(message).__name__} before it was ready")
        return message.gpu

    async def receive(self) -> Any:
        """The next message but WorkerFailed, which is raised as WorkerDied."""
        try:
            message = await anext(self.pipe)
        except StopAsyncIteration:
            raise WorkerDied(await self._end_reason()) from None
        except ProtocolError as error:
            raise WorkerDied(f"it sent an invalid message: {error}") from None
        if isinstance(message, WorkerFailed):
            raise WorkerDied(message.error.message, is_permanent=message.permanent)
        return message

    def kill(self, verdict: str) -> None:
        """Kills the process; SIGKILL also ends a stopped one. Messages that it has sent are still received."""
        self._verdict = verdict
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def end_with_process(self) -> None:
        """Closes the pipe after the process has ended, even if a child of the worker still holds it."""
        await self.process.wait()
        await asyncio.sleep(EXIT_GRACE_S)
        self.pipe.close()

    async def _end_reason(self) -> str:
        if self._verdict is not None:
            return self._verdict
        if self.pipe.overflowed:
            return "it does not read its commands"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_GRACE_S):
                await self.process.wait()
        returncode = self.process.returncode
        return "it closed its pipe" if returncode is None else death_reason(returncode)
