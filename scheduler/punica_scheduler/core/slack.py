"""The slack of requests that decode: how long a GPU may pause before one of them breaks its promised time per token.

A request's slack is the time until its last token is due, less the steps that it needs until then. While steps take as
long as predicted it stays the same; a pause for a prefill takes its length away from everyone.
"""

from collections.abc import Callable, Collection
from math import inf

from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require


class Slack:
    """Requests are named by the counters of their assignments. Those without a promise are left out."""

    __slots__ = ("_ends", "_least", "_num_steps", "_step_s")

    def __init__(self) -> None:
        #: Steps with decodes so far.
        self._num_steps = 0
        #: When its last token is due, in seconds by the scheduler's clock, and the number of the step that makes it.
        self._ends: dict[int, tuple[float, int]] = {}
        #: The answer of ``least_s`` for steps of this duration, at clock and step 0. NaN: not known.
        self._step_s, self._least = -1.0, inf

    def stepped(self) -> None:
        """Every request got a token."""
        self._num_steps += 1

    def add(self, counter: int, record: RequestRecord, now_s: float) -> None:
        """The request is about to get the first token of this assignment."""
        due_s = record.last_token_due_s(now_s)
        if due_s is not None and (num_left := record.num_answer - record.num_generated - 1) > 0:
            self._ends[counter] = due_s, self._num_steps + num_left
            self._step_s = -1.0

    def remove(self, counter: int) -> None:
        if self._ends.pop(counter, None) is not None:
            self._step_s = -1.0

    def least_at_0(self, step_s: float) -> float:
        """The least slack, in seconds, to which the time since clock 0 was not lost yet."""
        if step_s != self._step_s:
            self._least = min([due_s - end * step_s for due_s, end in self._ends.values()], default=inf)
            self._step_s = step_s
        return self._least + self._num_steps * step_s

    def least_after_pauses(self, step_s: float, pause_within: Callable[[int], float]) -> float:
        """The same, less what pauses take from each: ``pause_within`` has the seconds of those in so many steps."""
        num_steps = self._num_steps
        ends = self._ends.values()
        left = [due_s - end * step_s - pause_within(max(1, end - num_steps)) for due_s, end in ends]
        return min(left, default=inf) + num_steps * step_s

    def check_invariants(self, counters: Collection[int]) -> None:
        """``counters`` are those who have a token. AssertionError is a bug of ours."""
        require(self._ends.keys() <= set(counters), "the slack of a GPU's requests")
