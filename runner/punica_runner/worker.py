"""The worker's process: one device, or a simulated one, commanded over pipes by the supervisor that started it.

The main thread steps. A reader thread takes commands off the pipe and answers pings, so that a step that takes long is
told from a process that does not run. The pipe's end is the end of the process: a worker never outlives its supervisor,
not even with a step that hangs.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import NoReturn

from punica_runner import engine_steps, simulated_steps
from punica_runner.link import Link
from punica_runner.pipes import WorkerPipe
from punica_serve.config import EngineConfig
from punica_serve.errors import ConfigError, ModelRejected, PunicaError
from punica_serve.logs import LogFormat, LogLevel, configure_logging
from punica_serve.protocol import SupervisorToWorker, WireError, WorkerFailed
from punica_serve.simulation.config import SimulationConfig
from punica_serve.simulation.worker import SIMULATED_DEVICE

#: How long a worker whose supervisor is gone may take for the step that it is in.
ORPHAN_GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1


def main() -> None:
    options = _parse(sys.argv[1:])
    configure_logging(f"worker {options.index}", options.log_level, options.log_format)
    _end_with_supervisor()
    pipe = WorkerPipe(options.read_fd, options.write_fd, SupervisorToWorker)
    link = Link(pipe)
    threading.Thread(target=_read, args=(link,), name="pipe-reader", daemon=True).start()
    try:
        _run(options, link)
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
    parser.add_argument("--simulation", required=True, type=SimulationConfig.model_validate_json, help="JSON")
    parser.add_argument("--device", required=True, help="cpu, cuda:0, or simulated")
    parser.add_argument("--runner-id", required=True)
    parser.add_argument("--index", required=True, type=int, help="which of the runner's devices this is")
    parser.add_argument("--log-level", required=True, type=LogLevel)
    parser.add_argument("--log-format", required=True, type=LogFormat)
    parser.add_argument("--otlp-endpoint")
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


def _read(link: Link) -> None:
    """The reader thread."""
    try:
        link.read()
    except PunicaError:
        traceback.print_exc()
    except BrokenPipeError:
        pass  # the end of the pipe, seen from its other side
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(ORPHAN_GRACE_S)
    os._exit(1)


def _run(options: argparse.Namespace, link: Link) -> NoReturn:
    if options.device == SIMULATED_DEVICE:
        simulated_steps.run(options.engine_config, options.simulation, options.runner_id, options.index, link)
    engine_steps.run(
        options.engine_config, options.device, options.runner_id, options.index, link, options.otlp_endpoint
    )


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
