"""How much later than its leader a rank launches a step, phase by phase: the host's clock is one for all processes."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

#: The phases of a launch, in order. The frame has been written by the leader, or read by another rank; the plan is
#: there; the copy of the inputs before has ended; the inputs are written and their copy is queued; the forward pass is
#: queued; the launch is over, with the sampling.
Phase = Literal["frame", "plan", "wait", "inputs", "forward", "launch"]
PHASES: tuple[Phase, ...] = get_args(Phase)
#: Newest steps that a rank remembers.
_MAX_STEPS = 2048

#: When a launch passed each phase, on the monotonic clock.
Marks = tuple[int, ...]


class LaunchTimes:
    """When a rank launched its newest steps."""

    def __init__(self) -> None:
        self._launches: deque[Marks] = deque(maxlen=_MAX_STEPS)

    def add(self, *marks_ns: int) -> None:
        """A step has just been launched. ``marks_ns``: of all phases but the last."""
        self._launches.append((*marks_ns, time.monotonic_ns()))

    @property
    def newest_ns(self) -> tuple[Marks, ...]:
        """The marks of each step, oldest first."""
        return tuple(self._launches)


def launch_lags_us(leader: Sequence[Marks], others: Sequence[Sequence[Marks]]) -> Mapping[Phase, list[float]]:
    """How long after the leader the last of the other ranks passed each phase, in µs, oldest step first.

    All have launched the same steps last. A lag is negative where the leader was the last one itself.
    """
    num_steps = min(map(len, (leader, *others)))
    newest = [launches[len(launches) - num_steps :] for launches in (leader, *others)]
    return {
        phase: [(max(late) - own) / 1e3 for own, *late in zip(*_marks_of(place, newest), strict=True)]
        for place, phase in enumerate(PHASES)
    }


def _marks_of(place: int, ranks: Sequence[Sequence[Marks]]) -> list[list[int]]:
    """One phase's, by rank and step."""
    return [[marks[place] for marks in launches] for launches in ranks]
