"""Detects a frozen worker process, or a step loop without progress, by the worker's answers to pings."""

import math

from punica_serve.process.stall_detector import StallDetector
from punica_serve.protocol import Ping, Pong

#: Pings within the silence timeout.
_NUM_PINGS = 4


class Watchdog:
    """Call ``verdict`` and ``ping`` every ``interval_s``.

    It counts pings and reads no clock, so time in which the supervisor itself was stopped does not count.
    """

    def __init__(self, *, silence_timeout_s: float, step_timeout_s: float) -> None:
        self.interval_s = silence_timeout_s / _NUM_PINGS
        self._silence_timeout_s = silence_timeout_s
        self._step_timeout_s = step_timeout_s
        self._num_pings = 0
        self._newest = Pong(number=0, num_turns=0)
        #: The number of the first ping whose answer told the newest number of turns.
        self._turned_by = 0
        self._answers = StallDetector(0, _NUM_PINGS + 1)
        self._max_pings_a_turn = math.ceil(step_timeout_s / self.interval_s)

    def ping(self) -> Ping:
        """The next ping to send."""
        self._num_pings += 1
        return Ping(self._num_pings)

    def answered(self, pong: Pong) -> None:
        if pong.num_turns != self._newest.num_turns:
            self._turned_by = pong.number
        self._newest = pong

    def verdict(self) -> str | None:
        """Returns why the worker must be killed, or None. Call it before each ping."""
        if self._answers.observe(self._newest.number):
            return f"it has answered no ping for {self._silence_timeout_s:g} s"
        # Pings are numbered, so an answer that is late neither blames the step loop nor gives it time.
        if self._newest.number - self._turned_by > self._max_pings_a_turn:
            return f"it has made no step for {self._step_timeout_s:g} s, though a request could run"
        return None
