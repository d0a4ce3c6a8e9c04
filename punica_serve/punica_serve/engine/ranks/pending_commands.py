"""The commands that some ranks have not ended, each with a future for whoever waits for all of them."""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from punica_serve.engine.ranks.rank_loss import RankLost
from punica_serve.engine.ranks.rank_messages import Done, RankAudit
from punica_serve.errors import RequestFailed, StoreUnavailable
from punica_serve.errors.invariants import require

#: A rank that has not ended a command by then is lost. It gives itself less time.
COMMAND_TIMEOUT_S = 60.0


@dataclass(slots=True, eq=False)
class _Command:
    number: int
    sent_s: float
    #: Ranks that have not ended it.
    waiting_for: set[str]
    future: "Future[list[RankAudit]]" = field(default_factory=Future)
    audits: list[RankAudit] = field(default_factory=list)
    error: Exception | None = None


class PendingCommands:
    """Commands are added on one thread and ended on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: dict[int, _Command] = {}
        self._num_added = 0
        self._loss: Exception | None = None

    def add(self, ranks: Iterable[str]) -> "tuple[int, Future[list[RankAudit]]]":
        """The number of a new command, and its end: the ranks' audits, if they sent any, or the first error."""
        with self._lock:
            self._num_added += 1
            command = _Command(self._num_added, time.monotonic(), set(ranks))
            if self._loss is not None:
                command.future.set_exception(self._loss)
            else:
                self._commands[command.number] = command
            return command.number, command.future

    def end(self, rank: str, done: Done) -> None:
        """A rank has ended a command."""
        with self._lock:
            command = self._commands[done.number]
            require(rank in command.waiting_for, f"{rank} has ended command {done.number} twice")
            command.waiting_for.remove(rank)
            command.error = command.error or _error_of(rank, done)
            command.audits += [done.audit] if done.audit else []
            if command.waiting_for:
                return
            del self._commands[done.number]
        if command.error is None:
            command.future.set_result(command.audits)
        else:
            command.future.set_exception(command.error)

    def check(self) -> None:
        """Raises RankLost for ranks that take too long."""
        with self._lock:
            oldest = next(iter(self._commands.values()), None)
        if oldest is not None and time.monotonic() - oldest.sent_s > COMMAND_TIMEOUT_S:
            late = " and ".join(sorted(oldest.waiting_for))
            raise RankLost(f"{late} did not end a command within {COMMAND_TIMEOUT_S:g} s")

    def fail(self, loss: Exception) -> None:
        """Fails all commands, those that are added later too."""
        with self._lock:
            self._loss = loss
            lost: Sequence[_Command] = tuple(self._commands.values())
            self._commands.clear()
        for command in lost:
            command.future.set_exception(loss)


def _error_of(rank: str, done: Done) -> Exception | None:
    if done.error is None:
        return None
    kind = StoreUnavailable if done.error.code == StoreUnavailable.code else RequestFailed
    return kind(f"{rank}: {done.error.message}")
