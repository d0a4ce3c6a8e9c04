"""How long before the device becomes idle the next step is launched: as short as launches allow. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

#: At first: about the time of a launch.
_FIRST_S = 0.001
#: A longer lead helps nobody: launches that take so long are rare hiccups, or steps are too short to wait for anything.
_MAX_S = 0.004
#: A late launch adds so much.
_RAISE_S = 0.0001
#: The share of launches that may be late. One costs the device a fraction of a millisecond. A lead that is never too
#: short would cost more, since each request that comes within it waits one more step.
_LATE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class LaunchMargin:
    """The launch of a step behind another one, for figures."""

    lead_s: float
    #: From the launch to the end of the step before, as the host notices it; 0 if that had ended by then.
    early_s: float
    #: The same of other ranks on the leader's host, by rank.
    ranks_early_s: Mapping[int, float] = field(default_factory=dict)


class LaunchLead:
    """Follows whether launches are over in time, whatever makes them late: their own time, the timer, the forecast.

    Late ones raise it, the others lower it slowly, so that a small share is late. One hiccup hardly counts.
    """

    def __init__(self) -> None:
        self.seconds = _FIRST_S

    def learn(self, left_s: float, *, is_late: bool) -> None:
        """A step was launched ``left_s`` before the device was to become idle. ``is_late``: it was idle by then.

        One that began earlier than the lead and was in time does not tell whether the lead would have been enough.
        """
        if is_late:
            self.seconds = min(self.seconds + _RAISE_S, _MAX_S)
        elif left_s <= self.seconds:
            self.seconds = max(self.seconds - _LATE_SHARE * _RAISE_S, 0.0)
