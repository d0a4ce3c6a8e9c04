"""How a part of the start went on each rank, told over the store at which they have met, while GPUs may hang in it."""

import time
from collections.abc import Callable

from torch._C._distributed_c10d import Store

from punica_serve.base_model.rank import Rank
from punica_serve.errors import ConfigError

#: All ranks end a part at nearly the same time, or one of them hangs.
_TIMEOUT_S = 10.0
_PAUSE_S = 0.005


class StartVotes:
    """One rank's. Every part has a name of its own."""

    def __init__(self, store: Store, rank: Rank, timeout_s: float = _TIMEOUT_S) -> None:
        self._store = store
        self._rank = rank
        self._timeout_s = timeout_s

    def meet(self, part: str, timeout_s: float, check: Callable[[], None]) -> list[str]:
        """Says that this rank has come to the part, and waits for the others. Returns the names of those that are late.

        ``check`` is called again and again meanwhile; its errors end the wait.
        """
        self.say(part, None)
        return self._await(part, timeout_s, check)

    def collect(self, part: str, word: str) -> list[str]:
        """The words of all ranks about a part, by rank. Raises ConfigError, naming the ranks that are late."""
        self.say(part, word)
        if late := self._await(part, self._timeout_s):
            raise self._refusal(part, late, None)
        return [self._store.get(_key(part, index)).decode() for index in range(self._rank.size)]

    def say(self, part: str, word: str | None) -> None:
        """Tells the others that this rank has ended the part, or why it can't."""
        self._store.set(_key(part, self._rank.index), word or "")

    def fault(self, part: str) -> str | None:
        """The first fault that a rank has told of so far, with its name."""
        faults = (self._told(part, index) for index in self._said(part))
        return next(filter(None, faults), None)

    def agree(self, part: str, fault: str | None) -> str | None:
        """The first fault, with its rank's name, after all have said how it went; None if it went well everywhere.

        Raises ConfigError, naming the ranks that do not say it in time.
        """
        self.say(part, fault)
        if late := self._await(part, self._timeout_s):
            raise self._refusal(part, late, self.fault(part))
        return self.fault(part)

    def _refusal(self, part: str, late: list[str], fault: str | None) -> ConfigError:
        reason = f" ({fault})" if fault else ""
        words = f"{' and '.join(late)} could not {part} within {self._timeout_s:g} s{reason}"
        return ConfigError(f"{words}; set `engine.exchange` to nccl", param="engine.exchange")

    def _await(self, part: str, timeout_s: float, check: Callable[[], None] = lambda: None) -> list[str]:
        """The names of the ranks that have said nothing about the part when the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while len(said := self._said(part)) < self._rank.size and time.monotonic() < deadline_s:
            check()
            time.sleep(_PAUSE_S)
        return [f"rank {index}" for index in range(self._rank.size) if index not in said]

    def _said(self, part: str) -> list[int]:
        return [index for index in range(self._rank.size) if self._store.check([_key(part, index)])]

    def _told(self, part: str, index: int) -> str | None:
        fault = self._store.get(_key(part, index)).decode()
        return f"rank {index} can't {part}: {fault}" if fault else None


def _key(part: str, index: int) -> str:
    return f"votes/{part}/{index}"
