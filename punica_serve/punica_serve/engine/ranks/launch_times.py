"""When the ranks of a group launch their steps: the host's clock is one for all processes."""

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

#: When a launch passed each phase, in ns on the monotonic clock.
PhaseTimes = tuple[int, ...]


class LaunchTimes:
    """When a rank launched its newest steps."""

    def __init__(self) -> None:
        self._launches: deque[PhaseTimes] = deque(maxlen=_MAX_STEPS)
        self._begun_ns = 0

    def begin(self) -> None:
        """The leader is about to send a step."""
        self._begun_ns = time.monotonic_ns()

    def add(self, *phases_ns: int) -> int:
        """A step has just been launched. ``phases_ns``: of all phases but the last, whose own is returned."""
        launched_ns = time.monotonic_ns()
        self._launches.append((*phases_ns, launched_ns))
        return launched_ns

    def early_s(self, own_early_s: float, others_ns: Mapping[int, int]) -> dict[int, float]:
        """How long before the end of the step before, by rank, others launched the newest step.

        ``own_early_s``: this leader's time, 0 if that step had ended by then, as it then had for others. ``others_ns``:
        each one's newest launch, whichever step that was.
        """
        return {rank: self._early_s(own_early_s, launched_ns) for rank, launched_ns in others_ns.items()}

    def _early_s(self, own_early_s: float, launched_ns: int) -> float:
        if launched_ns < self._begun_ns or not own_early_s:
            return 0.0  # that was an older step
        return max(0.0, own_early_s - 1e-9 * (launched_ns - self._launches[-1][-1]))

    @property
    def newest_ns(self) -> tuple[PhaseTimes, ...]:
        """The times of each step, oldest first."""
        return tuple(self._launches)


def launch_lags_us(leader: Sequence[PhaseTimes], others: Sequence[Sequence[PhaseTimes]]) -> Mapping[Phase, list[float]]:
    """How long after the leader the last of the other ranks passed each phase, in µs, oldest step first.

    All have launched the same steps last. A lag is negative where the leader was the last one itself.
    """
    num_steps = min(map(len, (leader, *others)))
    newest = [launches[len(launches) - num_steps :] for launches in (leader, *others)]
    return {
        phase: [(max(late) - own) / 1e3 for own, *late in zip(*_times_at(place, newest), strict=True)]
        for place, phase in enumerate(PHASES)
    }


def _times_at(place: int, ranks: Sequence[Sequence[PhaseTimes]]) -> list[list[int]]:
    """One phase's, by rank and step."""
    return [[times[place] for times in launches] for launches in ranks]
