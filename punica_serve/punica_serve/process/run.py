"""Runs a process of a cluster: one coroutine, until a signal, within deadlines, and never as an orphan.

    scheduler, runner, frontend, up  --  run(name, serve(...))

SIGINT cancels the coroutine, which then has ``stop_timeout_s`` to clean up. SIGTERM asks a process that can drain to
finish or hand over its work and to end by itself; it cancels any other. A second signal ends the process at once. A
process started with a lifeline (the read end of a pipe whose write end only its parent holds) also stops when the
parent has died, for whatever reason. The event loop notifies the watchdog (see ``readiness``).
"""

import asyncio
import logging
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from punica_serve.errors import ConfigError, PunicaError
from punica_serve.errors.reasons import reason_of
from punica_serve.process.logs import LogFormat, LogLevel, configure_logging
from punica_serve.process.readiness import STOPPING, keep_alive, notify, remove_stale_alive_file

#: Environment variable of the secret that all processes of a cluster share.
TOKEN_ENV = "PUNICA_CLUSTER_TOKEN"
#: Names a file with the secret instead, as service managers and containers provide secrets.
TOKEN_FILE_ENV = "PUNICA_CLUSTER_TOKEN_FILE"
#: The lifeline's file descriptor.
LIFELINE_ENV = "PUNICA_LIFELINE_FD"

#: How long a process may take to clean up.
STOP_TIMEOUT_S = 10.0

#: Exit code after a user's mistake: starting the process again can't help.
EXIT_USER_MISTAKE = 2
EXIT_GAVE_UP = 1

#: Modules that the base install leaves out -> the extra that installs them.
EXTRA_OF_MODULE = {
    "asyncpg": "postgres",
    "flashinfer": "gpu",
    "huggingface_hub": "hf",
    "matplotlib": "bench",
    "opentelemetry": "otel",
    "peft": "parity",
    "ray": "ray",
    "s3fs": "s3",
    "torch": "engine",
    "transformers": "parity",
    "triton": "gpu",
}

log = logging.getLogger(__name__)


class Drain:
    """SIGTERM's request that a process finish its work and end without loss. Its coroutine awaits and obeys it."""

    def __init__(self, timeout_s: float) -> None:
        #: The coroutine is cancelled if it has not ended by itself so long after the signal.
        self.timeout_s = timeout_s
        self._wanted = asyncio.Event()

    def begin(self) -> None:
        self._wanted.set()

    async def wanted(self) -> None:
        """Returns once the process should finish its work and end."""
        await self._wanted.wait()


def cluster_token() -> str:
    """The cluster's secret, from the environment or the file that it names. Raises ConfigError if there is none."""
    token = given_token()
    if not token:
        raise ConfigError(
            f"{TOKEN_ENV} is not set; give all processes of a cluster the same secret, for instance "
            f"export {TOKEN_ENV}={secrets.token_hex(16)}"
        )
    return token


def given_token() -> str | None:
    """The cluster's secret, or None. Raises ConfigError for a file that can't be read or is empty."""
    path = os.environ.get(TOKEN_FILE_ENV)
    if (token := os.environ.get(TOKEN_ENV)) or path is None:
        return token
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{TOKEN_FILE_ENV}: {path} can't be read: {reason_of(error)}", param=TOKEN_FILE_ENV
        ) from error
    if not token:
        raise ConfigError(f"{TOKEN_FILE_ENV}: {path} is empty", param=TOKEN_FILE_ENV)
    return token


def run_process(
    name: str,
    serve: Coroutine[Any, Any, None],
    *,
    log_level: LogLevel = LogLevel.INFO,
    log_format: LogFormat = LogFormat.TEXT,
    stop_timeout_s: float = STOP_TIMEOUT_S,
    drain: Drain | None = None,
) -> None:
    """Runs a process's coroutine until it ends or a signal cancels it. One that obeys ``drain`` ends after SIGTERM.

    If only PunicaErrors ended the coroutine, raises the first of them without the task groups around it, so that a
    user's mistake is one line. Raises other exceptions as they are.
    """
    configure_logging(name, log_level, log_format)
    remove_stale_alive_file()
    _hold_lifeline(stop_timeout_s)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_until_signal(serve, stop_timeout_s, drain))
    except BaseExceptionGroup as group:
        mistakes, rest = group.split(PunicaError)
        if mistakes is None or rest is not None:
            raise
        raise _first_leaf(mistakes) from group


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's if installed (there is none for Windows): a frame costs half as much as with asyncio's own."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The error text that says how to install a missing package; None for a module of Python or of ours, our bug."""
    package = (error.name or "").partition(".")[0]
    if not package or package in sys.stdlib_module_names or package.startswith("punica_"):
        return None
    extra = EXTRA_OF_MODULE.get(package)
    wanted = f"punica-serve[{extra}]" if extra else "punica-serve"
    return f"{package} is not installed; pip install '{wanted}'"


async def _until_signal(serve: Coroutine[Any, Any, None], stop_timeout_s: float, drain: Drain | None) -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    signalled = stopping = False

    def stop() -> None:
        nonlocal stopping
        stopping = True
        task.cancel()  # first: on a machine out of threads, the deadline's thread can't start
        _exit_after(stop_timeout_s)

    def begin_to_drain() -> None:
        assert drain is not None
        drain.begin()
        loop.call_later(drain.timeout_s, stop)

    def on_signal(action: Callable[[], None]) -> None:
        nonlocal signalled
        if signalled:
            os._exit(EXIT_GAVE_UP)
        signalled = True
        notify(STOPPING)
        action()

    loop.add_signal_handler(signal.SIGINT, on_signal, stop)
    loop.add_signal_handler(signal.SIGTERM, on_signal, begin_to_drain if drain else stop)
    signs_of_life = asyncio.create_task(keep_alive())
    try:
        await serve
    except asyncio.CancelledError:
        if not stopping:
            raise
    finally:
        signs_of_life.cancel()


def _exit_after(timeout_s: float) -> None:
    """Ends the process if it still runs then. It uses a thread, because the event loop may be stuck."""

    def give_up() -> None:
        log.error("did not stop within %g s; exiting now", timeout_s)
        os._exit(EXIT_GAVE_UP)

    timer = threading.Timer(timeout_s, give_up)
    timer.daemon = True
    timer.start()


def _hold_lifeline(stop_timeout_s: float) -> None:
    """Stops this process once its parent is gone. Removes the variable, so that child processes don't inherit it."""
    fd = os.environ.pop(LIFELINE_ENV, None)
    if fd is not None:
        threading.Thread(target=_watch_lifeline, args=(int(fd), stop_timeout_s), name="lifeline", daemon=True).start()


def _watch_lifeline(fd: int, stop_timeout_s: float) -> None:
    os.read(fd, 1)  # nothing is ever written: this returns when the last write end is closed
    os.kill(os.getpid(), signal.SIGINT)  # not SIGTERM: the process to hand work over to is most likely gone too
    time.sleep(stop_timeout_s)
    os._exit(EXIT_GAVE_UP)


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
