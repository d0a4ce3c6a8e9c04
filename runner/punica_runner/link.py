"""A worker's link to its supervisor, as its two threads share it: one reads, the other runs the steps."""

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path

from punica_runner.pipes import WorkerPipe
from punica_runner.step_loop import Command
from punica_serve.errors import AdapterRejected, ProtocolError, StoreUnavailable
from punica_serve.protocol import AdapterFetched, AdapterRef, FetchAdapter, Message, Ping, Pong


class Link:
    """Commands on their way to the step loop, and how far that has come.

    Commands never block the reader, which must see the pipe's end. The scheduler is what bounds them: it books the
    pages of each start until it is acknowledged, so no more starts can wait than the KvCache has pages, and as many
    stops.
    """

    def __init__(self, pipe: WorkerPipe) -> None:
        self._pipe = pipe
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        #: Ends the step loop's wait; set once there is one.
        self.wake: Callable[[], None] = lambda: None
        #: Of the step loop, but for those that ran nothing though a request could have run.
        self.num_turns = 0
        #: Files that the supervisor has been asked for, by digest.
        self._fetches: dict[str, Future[Path]] = {}

    def read(self) -> None:
        """The reader thread's work, until the pipe ends. Pings are answered here, whatever the step loop does."""
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
        """Those that have come."""
        while self.has_commands():
            yield self._commands.get_nowait()

    def fetch(self, ref: AdapterRef) -> Future[Path]:
        """Asks for an adapter's files on this host's disk; not again before the answer is there.

        The answer is AdapterRejected if nobody will ever get them, or StoreUnavailable.
        """
        future = self._fetches[ref.digest] = Future()
        self._pipe.send(FetchAdapter(ref))
        return future

    def _end_fetch(self, message: AdapterFetched) -> None:
        future = self._fetches.pop(message.digest, None)
        if future is None:
            raise ProtocolError(f"the supervisor sent adapter {message.digest}, which nobody has asked for")
        if message.folder is not None:
            future.set_result(Path(message.folder))
            return
        words = message.error.message if message.error else "the supervisor gave no reason"
        future.set_exception(AdapterRejected(words) if message.is_permanent else StoreUnavailable(words))

    def send(self, messages: Iterable[Message]) -> None:
        """In this order. Raises BrokenPipeError when the supervisor has gone."""
        for message in messages:
            self._pipe.send(message)
