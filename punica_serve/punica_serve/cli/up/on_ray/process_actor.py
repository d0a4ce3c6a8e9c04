"""The actor. Its process is its child and ends with it. Ray restarts the actor, and the actor the process."""

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import ray

from punica_serve.cli.up.on_ray.processes import serve
from punica_serve.cli.up.on_ray.roles import Place, Role
from punica_serve.errors import ConfigError
from punica_serve.process.run import STOP_TIMEOUT_S


class ProcessActor:
    """Ray runs each method on its own thread, as long as none of them is a coroutine."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._url: str | None = None
        self._stopping = threading.Event()
        self._stopped = threading.Event()

    def where(self) -> Place:
        return Place(ray.get_runtime_context().get_node_id(), self._url)

    def run(self) -> str | None:
        """Keeps the process running until ``stop``. Returns the message if a user's mistake ended it."""
        # Ray blocks SIGINT in its processes; a child would inherit that and never stop when asked to.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        mistakes: list[str] = []
        try:
            asyncio.run(_serve_until(self._stopping, self._role, self._listens))
        except* ConfigError as group:
            mistakes += map(str, _leaves(group))
        finally:
            self._stopped.set()
        return mistakes[0] if mistakes else None

    def stop(self) -> None:
        """Returns when the process has ended, or has used up its time to do so."""
        self._stopping.set()
        self._stopped.wait(2 * STOP_TIMEOUT_S)

    def _listens(self, url: str) -> None:
        self._url = url


async def _serve_until(stopping: threading.Event, role: Role, on_listening: Callable[[str], None]) -> None:
    with TemporaryDirectory(prefix="punica-ray-") as folder:
        try:
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(serve(role, Path(folder), on_listening))
                await asyncio.to_thread(stopping.wait)
                serving.cancel()
        finally:
            stopping.set()  # the waiting thread must end first: closing the loop waits for it


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
