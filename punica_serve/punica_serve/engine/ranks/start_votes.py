"""How a part of the start went on each rank, told over the store at which they have met, while GPUs may hang in it."""

from datetime import timedelta

from torch._C._distributed_c10d import Store

from punica_serve.base_model.rank import Rank
from punica_serve.errors import ConfigError

#: All ranks end a part at nearly the same time, or one of them hangs.
_TIMEOUT_S = 10.0


class StartVotes:
    """One rank's. Every part has a name of its own."""

    def __init__(self, store: Store, rank: Rank, timeout_s: float = _TIMEOUT_S) -> None:
        self._store = store
        self._rank = rank
        self._timeout_s = timeout_s

    def say(self, part: str, fault: str | None) -> None:
        """Tells the others that this rank has ended the part, or why it can't."""
        self._store.set(_key(part, self._rank.index), fault or "")

    def fault(self, part: str) -> str | None:
        """The first fault that a rank has told of so far, with its name."""
        faults = (self._told(part, index) for index in self._said(part))
        return next(filter(None, faults), None)

    def agree(self, part: str, fault: str | None) -> str | None:
        """The first fault, with its rank's name, after all have said how it went; None if it went well everywhere.

        Raises ConfigError, naming the ranks that do not say it in time.
        """
        self.say(part, fault)
        keys = [_key(part, index) for index in range(self._rank.size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout_s))
        except RuntimeError:
            raise self._late(part) from None
        return self.fault(part)

    def _late(self, part: str) -> ConfigError:
        said = self._said(part)
        late = " and ".join(f"rank {index}" for index in range(self._rank.size) if index not in said)
        fault = self.fault(part)
        reason = f" ({fault})" if fault else ""
        message = f"{late} could not {part} within {self._timeout_s:g} s{reason}; set `engine.exchange` to nccl"
        return ConfigError(message, param="engine.exchange")

    def _said(self, part: str) -> list[int]:
        return [index for index in range(self._rank.size) if self._store.check([_key(part, index)])]

    def _told(self, part: str, index: int) -> str | None:
        fault = self._store.get(_key(part, index)).decode()
        return f"rank {index} can't {part}: {fault}" if fault else None


def _key(part: str, index: int) -> str:
    return f"votes/{part}/{index}"
