"""How much later than its leader a rank launches a step: the host's clock is one for all processes."""

import time
from collections import deque
from collections.abc import Sequence

#: Newest steps that a rank remembers.
_MAX_STEPS = 2048


class LaunchTimes:
    """When a rank launched its newest steps."""

    def __init__(self) -> None:
        self._launched_ns: deque[int] = deque(maxlen=_MAX_STEPS)

    def mark(self) -> None:
        """A step has just been launched."""
        self._launched_ns.append(time.monotonic_ns())

    @property
    def newest_ns(self) -> tuple[int, ...]:
        """On the monotonic clock, oldest first."""
        return tuple(self._launched_ns)


def launch_lags_us(leader_ns: Sequence[int], others_ns: Sequence[Sequence[int]]) -> list[float]:
    """How long after the leader the last of the other ranks launched each step, in µs, oldest first.

    All have launched the same steps last. A lag is negative where the leader was the last one itself.
    """
    num_steps = min(map(len, (leader_ns, *others_ns)))
    newest = [launched_ns[len(launched_ns) - num_steps :] for launched_ns in others_ns]
    last_ns = [max(step) for step in zip(*newest, strict=True)]
    own_ns = leader_ns[len(leader_ns) - num_steps :]
    return [(last - own) / 1e3 for last, own in zip(last_ns, own_ns, strict=False)]
