"""Judges a worker by its answers to pings: whether its process runs, and whether its step loop gets on."""

import math

from punica_serve.protocol import Ping, Pong
from punica_serve.stillness import Stillness

#: Pings within the time that a worker may be silent.
_NUM_PINGS = 4


class Watchdog:
    """Asked for a ping every ``interval_s``. It counts pings, so a supervisor that was itself stopped blames nobody."""

    def __init__(self, *, silence_timeout_s: float, step_timeout_s: float) -> None:
        self.interval_s = silence_timeout_s / _NUM_PINGS
        self._silence_timeout_s = silence_timeout_s
        self._step_timeout_s = step_timeout_s
        self._num_pings = 0
        self._newest = Pong(number=0, num_turns=0)
        self._answers = Stillness(0, _NUM_PINGS + 1)
        self._turns = Stillness(0, math.ceil(step_timeout_s / self.interval_s) + 1)

    def ping(self) -> Ping:
        """The next ping to send."""
        self._num_pings += 1
        return Ping(self._num_pings)

    def answered(self, pong: Pong) -> None:
        self._newest = pong

    def verdict(self) -> str | None:
        """Before each ping: what is wrong with the worker, if it is to be given up."""
        if self._answers.look(self._newest.number):
            return f"it has answered no ping for {self._silence_timeout_s:g} s"
        if self._turns.look(self._newest.num_turns):
            return f"it has made no step for {self._step_timeout_s:g} s, though a request could run"
        return None
