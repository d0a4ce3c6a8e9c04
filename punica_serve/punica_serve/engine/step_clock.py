"""The duration of steps, and so the time until the device is idle."""

import math
import time

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.in_flight import InFlight, StepKind
from punica_serve.engine.launch_lead import LaunchLead, LaunchMargin

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
        #: The newest duration of each kind.
        self._newest_by_kind_s: dict[StepKind, float] = {}
        self._lead = LaunchLead()
        #: When a step was launched behind the oldest one; None if none was.
        self._next_launched_s: float | None = None
        #: Whether the oldest one had ended by then, so that its end is noticed late.
        self._is_noticed_late = False
        #: The launch behind the step that ended last; None if none was.
        self.margin: LaunchMargin | None = None

    def end(self, step: InFlight) -> float:
        """Records that the oldest step has just ended. Returns its duration in seconds."""
        started_s, self._last_end_s = max(step.launched_s, self._last_end_s), time.perf_counter()
        duration_s = self._last_end_s - started_s
        self.margin = self._margin()
        # Else launches that are late would make steps seem longer, and later launches later still.
        growth = 1.0 if self._is_noticed_late else _SLOWLY
        self._is_noticed_late, self._next_launched_s = False, None
        self._shortest_s = min(duration_s, self._shortest_s * growth)
        self._learn(step.kind, duration_s, growth)
        return duration_s

    def forecast(self, in_flight: InFlight | None) -> StepForecast:
        """The step that would be launched now; ``in_flight`` keeps the device busy."""
        lasts_s = self._shortest_s if math.isfinite(self._shortest_s) else 0.0
        left_s = 0.0 if in_flight is None else self._left_s(in_flight)
        return StepForecast(max(0.0, left_s) if math.isfinite(left_s) else 0.0, lasts_s)

    def prefill_s(self, num_tokens: int) -> float:
        """How long a prefill of so many tokens lasts that waits for nothing, if nobody decodes beside it.

        The longest known duration of such prefills of at most this size; without one, the shortest of prefills of at
        least this size, whatever else their steps did; without those, that of any step. 0 if none is known.
        """
        num_bits, known = num_tokens.bit_length(), self._shortest_by_kind_s.items()
        shorter = [seconds for kind, seconds in known if kind.is_plain_prefill and kind.prefill_bits <= num_bits]
        longer = [seconds for kind, seconds in known if kind.prefill_bits >= num_bits]
        return max(shorter, default=min(longer, default=self.forecast(None).lasts_s))

    def launched(self, forecast: StepForecast, *, is_late: bool, has_ended: bool) -> None:
        """Records that a step has just been launched behind another.

        ``is_late``: the other had ended when the forward pass was queued. ``has_ended``: by now, sampling included.
        """
        self._lead.learn(forecast.starts_in_s, is_late=is_late)
        self._is_noticed_late, self._next_launched_s = has_ended, time.perf_counter()

    def time_to_launch_s(self, in_flight: InFlight) -> float:
        """How long the next launch can wait while that step keeps the device busy; 0 if it can't."""
        left_s = self._left_s(in_flight) - self._lead.seconds
        return left_s if 0 < left_s < math.inf else 0.0

    def _margin(self) -> LaunchMargin | None:
        if self._next_launched_s is None:
            return None
        early_s = self._last_end_s - self._next_launched_s
        return LaunchMargin(self._lead.seconds, 0.0 if self._is_noticed_late else early_s)

    def _learn(self, kind: StepKind, duration_s: float, growth: float) -> None:
        """One short step alone does not count: it seems short if the end of the step before was noticed late."""
        longer_s = max(duration_s, self._newest_by_kind_s.get(kind, duration_s))
        self._shortest_by_kind_s[kind] = min(longer_s, self._shortest_by_kind_s.get(kind, math.inf) * growth)
        self._newest_by_kind_s[kind] = duration_s

    def _left_s(self, in_flight: InFlight) -> float:
        """Seconds until that step ends, if it is as short as any of its kind was; infinite if nothing is known.

        The first step of a kind that may wait for layers lasts at least as long as one that does not.
        """
        kind, known = in_flight.kind, self._shortest_by_kind_s
        lasts_s = known.get(kind, known.get(kind._replace(is_early=False), self._shortest_s))
        return max(in_flight.launched_s, self._last_end_s) + lasts_s - time.perf_counter()
