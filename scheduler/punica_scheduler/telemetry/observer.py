"""Observes what the scheduler decides, and keeps the pictures of it that people look at.

The shell hands over each event with its actions. The core neither reads nor knows what is kept here.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from punica_scheduler.core.actions import Action, RecordEvent, RecordTokens
from punica_scheduler.core.events import Event, Tick
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.telemetry.cluster_events import ClusterEvents
from punica_scheduler.telemetry.history import History
from punica_scheduler.telemetry.rolling_stats import RollingStats
from punica_serve.protocol import ClusterSnapshot


class ClusterObserver:
    """Cluster events, rolling statistics and the history of one scheduler."""

    def __init__(self, scheduler: Scheduler, incarnation: int) -> None:
        self._scheduler = scheduler
        self._events = ClusterEvents()
        self._events.add("scheduler_started", None, incarnation)
        self._stats = RollingStats()
        self._history = History()

    def observe(self, event: Event, actions: Iterable[Action], now_ns: int) -> None:
        """Call it once for each event, with the actions that ``Scheduler.handle`` returned."""
        for action in actions:
            match action:
                case RecordTokens():
                    self._stats.observe(action)
                case RecordEvent(kind, gpu_uuid):
                    self._events.add(kind, gpu_uuid, now_ns)
        if isinstance(event, Tick):
            self._sample(now_ns)

    def snapshot(self, now_ns: int) -> ClusterSnapshot:
        """The scheduler's snapshot, with rolling statistics and cluster events."""
        recent = self._stats.figures(self._scheduler.sample(), now_ns)
        return replace(self._scheduler.snapshot(now_ns), recent=recent, marks=self._events.snapshot())

    def history(self) -> msgspec.Raw:
        """The last minutes: an encoded ClusterHistory."""
        return self._history.encoded()

    def _sample(self, now_ns: int) -> None:
        is_due = self._history.is_due(now_ns)
        if is_due or self._stats.is_due(now_ns):
            sample = self._scheduler.sample()
            self._stats.advance(sample, now_ns)
            if is_due:
                self._history.add(sample, self._stats.figures(sample, now_ns), now_ns)
