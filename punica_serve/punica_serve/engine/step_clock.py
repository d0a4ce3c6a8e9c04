"""The duration of steps, and so the time until the device is idle."""

import math
import time

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.in_flight import InFlight, StepKind
from punica_serve.engine.launch_lead import LaunchLead

#: Growth of the shortest duration from one step to the next, so that it follows slower steps.
_SLOWLY = 1.02


class StepClock:
    """Steps run one after the other: each begins when it is launched, or when the one before it ends."""

    def __init__(self) -> None:
        self._last_end_s = 0.0
        #: The shortest recent step; at first unknown.
        self._shortest_s = math.inf
        #: The same for steps of each kind: one with a prefill lasts longer, so a request has longer to join the next.
        self._shortest_by_kind_s: dict[StepKind, float] = {}
        self._lead = LaunchLead()

    def end(self, step: InFlight) -> float:
        """Records that the oldest step has just ended. Returns its duration in seconds."""
        started_s, self._last_end_s = max(step.launched_s, self._last_end_s), time.perf_counter()
        duration_s = self._last_end_s - started_s
        self._shortest_s = min(duration_s, self._shortest_s * _SLOWLY)
        of_kind_s = self._shortest_by_kind_s.get(step.kind, math.inf)
        self._shortest_by_kind_s[step.kind] = min(duration_s, of_kind_s * _SLOWLY)
        return duration_s

    def forecast(self, in_flight: InFlight | None) -> StepForecast:
        """The step that would be launched now; ``in_flight`` keeps the device busy."""
        lasts_s = self._shortest_s if math.isfinite(self._shortest_s) else 0.0
        left_s = 0.0 if in_flight is None else self._left_s(in_flight)
        return StepForecast(max(0.0, left_s) if math.isfinite(left_s) else 0.0, lasts_s)

    def launched(self, forecast: StepForecast, *, is_late: bool) -> None:
        """Records that a step has just been launched behind another. ``is_late``: the other had ended by then."""
        self._lead.learn(forecast.starts_in_s, is_late=is_late)

    def time_to_launch_s(self, in_flight: InFlight) -> float:
        """How long the next launch can wait while that step keeps the device busy; 0 if it can't."""
        left_s = self._left_s(in_flight) - self._lead.seconds
        return left_s if 0 < left_s < math.inf else 0.0

    def _left_s(self, in_flight: InFlight) -> float:
        """Seconds until that step ends, if it is as short as any of its kind was; infinite if nothing is known."""
        lasts_s = self._shortest_by_kind_s.get(in_flight.kind, self._shortest_s)
        return max(in_flight.launched_s, self._last_end_s) + lasts_s - time.perf_counter()
