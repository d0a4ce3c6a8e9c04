"""A worker's link to its supervisor, shared by its two threads: one reads, the other runs the steps."""

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Lock

from punica_runner.pipes import WorkerPipe
from punica_runner.step_loop import Command
from punica_serve.errors import AdapterRejected, ProtocolError, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, FetchAdapter, Message, Ping, Pong


class SupervisorLink:
    """Commands for the step loop, and the step loop's progress.

    Commands never block the reader, which must see the pipe's end. The scheduler bounds their number: it reserves the
    pages of each start until it is acknowledged, so no more starts can wait than the KvCache has pages, and as many
    stops.
    """

    def __init__(self, pipe: WorkerPipe) -> None:
        self._pipe = pipe
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        #: Ends the step loop's wait; set by the step loop.
        self.wake: Callable[[], None] = lambda: None
        #: Turns of the step loop. One that ran nothing though a request could run does not count.
        self.num_turns = 0
        #: Fetches that the supervisor has not answered, by digest.
        self._fetches: dict[str, Future[Path]] = {}
        self._lock = Lock()

    def read(self) -> None:
        """The reader thread's work, until the pipe ends. It answers pings itself, even during a step."""
        for message in self._pipe:
            if isinstance(message, Ping):
                self._pipe.send(Pong(message.number, self.num_turns))
            elif isinstance(message, AdapterFetched):
                self._end_fetch(message)
            else:
                self._commands.put(message)
                self.wake()

    def has_commands(self) -> bool:
        return not self._commands.empty()

    def commands(self) -> Iterator[Command]:
        """The commands that have arrived."""
        while self.has_commands():
            yield self._commands.get_nowait()

    def fetch(self, ref: AdapterRef) -> Future[Path]:
        """Asks for an adapter's files on this host's disk. Calls before the answer share it.

        The future gets their folder, AdapterRejected if a retry can't help, or StoreUnavailable.
        """
        with self._lock:
            future = self._fetches.get(ref.digest)
            if future is not None:
                return future
            future = self._fetches[ref.digest] = Future()
        self._pipe.send(FetchAdapter(ref))
        return future

    def _end_fetch(self, message: AdapterFetched) -> None:
        with self._lock:
            future = self._fetches.pop(message.digest, None)
        if future is None:
            raise ProtocolError(f"the supervisor sent adapter {message.digest}, which was not requested")
        if message.folder is not None:
            future.set_result(Path(message.folder))
            return
        words = message.error.message if message.error else "the supervisor gave no reason"
        future.set_exception(AdapterRejected(words) if message.is_permanent else StoreUnavailable(words))

    def send(self, messages: Iterable[Message]) -> None:
        """Sends messages in order. Raises BrokenPipeError if the supervisor is gone."""
        for message in messages:
            self._pipe.send(message)
