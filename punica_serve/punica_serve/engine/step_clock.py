"""The duration of steps, and so the time until the device is idle."""

import math
import time

from punica_serve.engine.adapters.copy_forecast import StepForecast

#: The next step is launched this long before the device becomes idle: the time of a launch, with a margin.
_LAUNCH_LEAD_S = 0.002

#: Growth of the shortest duration from one step to the next, so that it follows slower steps.
_SLOWLY = 1.02


class StepClock:
    """Steps run one after the other: each begins when it is launched, or when the one before it ends."""

    def __init__(self) -> None:
        self._last_end_s = 0.0
        #: The shortest recent step; at first unknown.
        self._shortest_s = math.inf

    def end(self, launched_s: float) -> float:
        """Records that the oldest step, launched at ``launched_s``, has ended. Returns its duration in seconds."""
        started_s, self._last_end_s = max(launched_s, self._last_end_s), time.perf_counter()
        duration_s = self._last_end_s - started_s
        self._shortest_s = min(duration_s, self._shortest_s * _SLOWLY)
        return duration_s

    def forecast(self, launched_s: float | None) -> StepForecast:
        """The step that would be launched now. ``launched_s``: the launch of the one that keeps the device busy."""
        lasts_s = self._shortest_s if math.isfinite(self._shortest_s) else 0.0
        if launched_s is None:
            return StepForecast(0.0, lasts_s)
        ends_s = max(launched_s, self._last_end_s) + lasts_s
        return StepForecast(max(0.0, ends_s - time.perf_counter()), lasts_s)

    def time_to_launch_s(self, launched_s: float) -> float:
        """How long the next launch can wait while the step of ``launched_s`` keeps the device busy; 0 if it can't."""
        started_s = max(launched_s, self._last_end_s)
        left_s = started_s + self._shortest_s - _LAUNCH_LEAD_S - time.perf_counter()
        return left_s if 0 < left_s < math.inf else 0.0
