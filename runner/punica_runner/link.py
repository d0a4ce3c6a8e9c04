"""A worker's link to its supervisor, as its two threads share it: one reads, the other runs the steps."""

import queue
from collections.abc import Callable, Iterable, Iterator

from punica_runner.pipes import WorkerPipe
from punica_runner.step_loop import Command
from punica_serve.protocol import Message, Ping, Pong


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

    def read(self) -> None:
        """The reader thread's work, until the pipe ends. Pings are answered here, whatever the step loop does."""
        for message in self._pipe:
            if isinstance(message, Ping):
                self._pipe.send(Pong(message.number, self.num_turns))
            else:
                self._commands.put(message)
                self.wake()

    def has_commands(self) -> bool:
        return not self._commands.empty()

    def commands(self) -> Iterator[Command]:
        """Those that have come."""
        while self.has_commands():
            yield self._commands.get_nowait()

    def send(self, messages: Iterable[Message]) -> None:
        """In this order. Raises BrokenPipeError when the supervisor has gone."""
        for message in messages:
            self._pipe.send(message)
