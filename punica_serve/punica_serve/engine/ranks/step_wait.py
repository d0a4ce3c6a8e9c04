"""The leader's wait for a step of its group, whose exchanges have no limit of their own within CUDA graphs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from punica_serve.engine.ranks.rank_loss import RankLost


class StepWait:
    """One thread waits for steps, one after the other; another one checks how long it has waited."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._began_s: float | None = None

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body waits for a step."""
        self._began_s = time.monotonic()
        try:
            yield
        finally:
            self._began_s = None

    def check(self) -> None:
        """Raises RankLost if the wait has lasted too long."""
        began_s = self._began_s
        if began_s is not None and time.monotonic() - began_s > self._timeout_s:
            raise RankLost(f"a step has not ended within {self._timeout_s:g} s: its ranks wait for each other")
