"""The worker's process: one engine on one device, commanded over pipes by the supervisor that started it.

The main thread steps. A reader thread takes commands off the pipe and answers pings, so that a step that takes long is
told from a process that does not run. The pipe's end is the end of the process: a worker never outlives its supervisor,
not even with a step that hangs.
"""

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from punica_runner.pipes import WorkerPipe
from punica_runner.step_loop import Command, StepLoop
from punica_serve.config import EngineConfig
from punica_serve.errors import ConfigError, ModelRejected, PunicaError
from punica_serve.process import LogLevel, configure_logging, missing_extra
from punica_serve.protocol import (
    GpuInfo,
    Message,
    Ping,
    Pong,
    SupervisorToWorker,
    WireError,
    WorkerFailed,
    WorkerReady,
)

if TYPE_CHECKING:
    from punica_serve.engine.engine import Engine

#: How long a worker whose supervisor is gone may take for the step that it is in.
ORPHAN_GRACE_S = 1.0
#: The longest sleep of a worker with nothing to do. Whatever there is to do wakes it earlier.
IDLE_WAIT_S = 1.0

_CPU_NAMESPACE = uuid.UUID("8f6bd2c0-41a5-5d0a-9c0b-0d9a6d8d1c11")
_PR_SET_PDEATHSIG = 1


class Inbox:
    """Commands on their way from the reader thread to the step loop.

    It never blocks the reader, which must see the pipe's end. The scheduler is what bounds it: it books the pages of
    each start until it is acknowledged, so no more starts can wait than the KvCache has pages, and as many stops.
    """

    def __init__(self) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        #: Ends the step loop's wait; set once there is an engine.
        self.wake: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return not self._commands.empty()

    def put(self, command: Command) -> None:
        self._commands.put(command)
        self.wake()

    def drain(self) -> Iterator[Command]:
        while self:
            yield self._commands.get_nowait()


class Progress:
    """What the reader thread tells of the step loop."""

    num_turns = 0


def main() -> None:
    options = _parse(sys.argv[1:])
    configure_logging(f"worker {options.index}", options.log_level)
    _end_with_supervisor()
    pipe = WorkerPipe(options.read_fd, options.write_fd, SupervisorToWorker)
    inbox, progress = Inbox(), Progress()
    threading.Thread(target=_read, args=(pipe, inbox, progress), name="pipe-reader", daemon=True).start()
    try:
        _run(options, pipe, inbox, progress)
    except BrokenPipeError:
        os._exit(0)  # the supervisor is gone
    except (ModelRejected, ConfigError) as error:
        _fail(pipe, error, permanent=True)
    except Exception as error:
        traceback.print_exc()
        _fail(pipe, error, permanent=False)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="punica_runner.worker", description="Started by the runner, not by hand.")
    parser.add_argument("--engine-config", required=True, type=EngineConfig.model_validate_json, help="JSON")
    parser.add_argument("--device", required=True, help="cpu, or cuda:0")
    parser.add_argument("--runner-id", required=True)
    parser.add_argument("--index", required=True, type=int, help="which of the runner's devices this is")
    parser.add_argument("--log-level", required=True, type=LogLevel)
    parser.add_argument("--read-fd", required=True, type=int)
    parser.add_argument("--write-fd", required=True, type=int)
    return parser.parse_args(arguments)


def _end_with_supervisor() -> None:
    """Ctrl-C reaches the whole terminal, but it is the supervisor who decides; SIGTERM is its word to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _terminate)
    if sys.platform == "linux":
        # A second net under the pipe's end: the kernel's own, for a worker that can't run Python any more.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _terminate(*_: object) -> NoReturn:
    """At once: there is nothing to save, and a signal that meets the interpreter's own end can hang it in torch."""
    os._exit(0)


def _read(pipe: WorkerPipe, inbox: Inbox, progress: Progress) -> None:
    """The reader thread."""
    try:
        for message in pipe:
            if isinstance(message, Ping):
                pipe.send(Pong(message.number, progress.num_turns))
            else:
                inbox.put(message)
    except PunicaError:
        traceback.print_exc()
    except BrokenPipeError:
        pass  # the end of the pipe, seen from its other side
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(ORPHAN_GRACE_S)
    os._exit(1)


def _run(options: argparse.Namespace, pipe: WorkerPipe, inbox: Inbox, progress: Progress) -> NoReturn:
    engine = _make_engine(options.engine_config, options.device)
    gpu_uuid = _gpu_uuid(engine, options.runner_id, options.index)
    inbox.wake = engine.wake
    pipe.send(WorkerReady(_describe(engine, options.engine_config, gpu_uuid, options.device)))
    loop = StepLoop(engine, gpu_uuid)
    while True:
        _send(pipe, loop.apply(inbox.drain()))
        reports, has_run = loop.step()
        _send(pipe, reports)
        progress.num_turns += has_run or not engine.has_runnable
        # In this order: a command that comes after the look at the inbox wakes the wait.
        if not has_run and not inbox:
            engine.wait(IDLE_WAIT_S)


def _make_engine(config: EngineConfig, device: str) -> "Engine":
    """Raises ConfigError, too, where an extra is not installed: some are imported only for a certain device."""
    try:
        # Only here, for it takes seconds: signals and the pipe's end are already heeded.
        from punica_serve.engine.engine import Engine

        return Engine(config, device)
    except ModuleNotFoundError as error:
        message = missing_extra(error)
        if message is None:
            raise
        raise ConfigError(message) from error


def _send(pipe: WorkerPipe, reports: Iterable[Message]) -> None:
    for report in reports:
        pipe.send(report)


def _describe(engine: "Engine", config: EngineConfig, gpu_uuid: str, device: str) -> GpuInfo:
    return GpuInfo(
        uuid=gpu_uuid,
        device=device,
        max_batch_size=config.max_batch_size,
        page_size=config.page_size,
        num_kv_pages=engine.num_kv_pages,
        num_lora_pages=engine.num_lora_pages,
    )


def _gpu_uuid(engine: "Engine", runner_id: str, index: int) -> str:
    """The device's own; a CPU gets one that is stable over restarts."""
    if engine.device.type == "cpu":
        return f"CPU-{uuid.uuid5(_CPU_NAMESPACE, f'{runner_id}/{index}')}"
    import torch

    return f"GPU-{torch.cuda.get_device_properties(engine.device).uuid}"


def _fail(pipe: WorkerPipe, error: Exception, *, permanent: bool) -> NoReturn:
    """The last words, for the supervisor's log. Exit code 2 is the operator's to mend, 1 ours.

    The end is at once: the interpreter's own waits for threads, and a read of an adapter may never return.
    """
    if isinstance(error, PunicaError):
        told = WireError.of(error)
    else:
        told = WireError(PunicaError.code, f"{type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError):
        pipe.send(WorkerFailed(told, permanent))
    sys.stderr.flush()
    os._exit(2 if permanent else 1)


if __name__ == "__main__":
    main()
