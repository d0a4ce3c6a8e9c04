"""Tells frontends what the cluster can hold, so that they refuse what never fits."""

from msgspec.structs import replace

from punica_scheduler.core.actions import AnnounceLimits
from punica_scheduler.core.fleet import Fleet
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.protocol import Limits


class LimitsAnnouncer:
    """The frontends that have joined, and the limits that they were told."""

    def __init__(self, fleet: Fleet, settings: SchedulerSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._frontends: set[str] = set()
        self._limits = self._with_least(Limits(num_gpus=0))

    def __len__(self) -> int:
        return len(self._frontends)

    def join(self, frontend_id: str, outcome: Outcome) -> None:
        """The frontend is told the limits, now and whenever they change."""
        self._frontends.add(frontend_id)
        outcome.actions.append(AnnounceLimits(frontend_id, self._limits))

    def leave(self, frontend_id: str) -> None:
        """The frontend's link is lost. Unknown ones are ignored."""
        self._frontends.discard(frontend_id)

    def update(self, outcome: Outcome) -> None:
        """The fleet may have changed."""
        limits = self._with_least(self._fleet.limits)
        if limits != self._limits:
            self._limits = limits
            outcome.actions += [AnnounceLimits(frontend_id, limits) for frontend_id in sorted(self._frontends)]

    def _with_least(self, limits: Limits) -> Limits:
        """Adds the shortest times that may be promised, which no change of the fleet changes."""
        return replace(
            limits,
            least_first_token_s=self._settings.least_first_token_s,
            least_time_per_token_s=self._settings.least_time_per_token_s,
        )
