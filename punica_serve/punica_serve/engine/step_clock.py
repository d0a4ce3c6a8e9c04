"""How long steps take, and so how long the device is busy yet."""

import math
import time

#: How long before the device falls idle the next step is launched at the latest: what a launch takes, and some more.
_LAUNCH_LEAD_S = 0.002

#: The growth of what counts as a short step, from one step to the next.
_SLOWLY = 1.02


class StepClock:
    """Steps run one after the other: one begins when it is launched, or when the one before it ends."""

    def __init__(self) -> None:
        self._last_end_s = 0.0
        #: Of late: no step is taken to be shorter. At first nothing is known.
        self._shortest_s = math.inf

    def end(self, launched_s: float) -> float:
        """The oldest step, launched then, has ended: its duration in seconds."""
        started_s, self._last_end_s = max(launched_s, self._last_end_s), time.perf_counter()
        duration_s = self._last_end_s - started_s
        self._shortest_s = min(duration_s, self._shortest_s * _SLOWLY)
        return duration_s

    def time_to_launch_s(self, launched_s: float) -> float:
        """How long the next launch can wait while the step launched then keeps the device busy; 0: it can not."""
        started_s = max(launched_s, self._last_end_s)
        left_s = started_s + self._shortest_s - _LAUNCH_LEAD_S - time.perf_counter()
        return left_s if 0 < left_s < math.inf else 0.0
