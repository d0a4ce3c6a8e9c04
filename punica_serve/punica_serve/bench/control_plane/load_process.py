"""A load process and its parent's handle: it reports when it is ready, then answers each look with measurements."""

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from punica_serve.bench.control_plane.settings import LoadSettings
from punica_serve.errors import ClusterUnavailable
from punica_serve.process.ending import end_process
from punica_serve.process.memory_tuning import tune_gc

#: Time limit for a load process to start, connect and fill the cluster.
READY_TIMEOUT_S = 120.0
LOOK_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 5.0

#: Runs the load and calls its argument once it is ready; the argument is a function that returns the measurements since
#: the last look.
LoadMain = Callable[[LoadSettings, Callable[[Callable[[], Any]], None]], Awaitable[None]]

_context = multiprocessing.get_context("spawn")


class LoadProcess:
    """A context manager: the process runs inside."""

    def __init__(self, main: LoadMain, load: LoadSettings) -> None:
        self._connection, theirs = _context.Pipe()
        self._process = _context.Process(target=_run, args=(main, load, theirs), daemon=True)
        self._theirs = theirs

    def __enter__(self) -> "LoadProcess":
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        end_process(self._process, _STOP_TIMEOUT_S)

    def wait_until_ready(self) -> None:
        """Raises ClusterUnavailable, like ``look``, if the process died or takes too long."""
        self._receive(READY_TIMEOUT_S)

    def look(self) -> Any:
        """The measurements since the last look."""
        self._connection.send(None)
        return self._receive(LOOK_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        with suppress(EOFError, OSError):
            if self._connection.poll(timeout_s):
                return self._connection.recv()
        raise ClusterUnavailable(
            "a load process died or hangs; see its messages above. Try a smaller load, with fewer GPUs (`--gpus`)"
        )


def _run(main: LoadMain, load: LoadSettings, connection: Connection) -> None:
    tune_gc()  # a full collection of all imports takes 40 ms, which would make tokens seem late
    uvloop.run(_until_parent_goes(main, load, connection))


async def _until_parent_goes(main: LoadMain, load: LoadSettings, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main(load, lambda figures: _serve_looks(loop, connection, figures, task)))
    with suppress(asyncio.CancelledError):
        await task


def _serve_looks(
    loop: asyncio.AbstractEventLoop,
    connection: Connection,
    figures: Callable[[], Any],
    task: "asyncio.Future[None]",
) -> None:
    def answer() -> None:
        try:
            connection.recv()
        except (EOFError, OSError):
            loop.remove_reader(connection.fileno())
            task.cancel()
        else:
            connection.send(figures())

    loop.add_reader(connection.fileno(), answer)
    # The event loop made it non-blocking, and measurements may exceed a pipe's capacity.
    os.set_blocking(connection.fileno(), True)
    connection.send(None)
