"""Observes the scheduler's events and actions, and keeps the statistics that people look at.

The shell hands over each event with its actions. The core neither reads nor knows what is kept here.
"""

from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import asdict, replace

from punica_scheduler.core.actions import Action, RecordEvent, RecordTokens
from punica_scheduler.core.events import Event, StepFinished, Tick
from punica_scheduler.core.scheduler import Scheduler
from punica_scheduler.telemetry.cluster_events import ClusterEvents
from punica_scheduler.telemetry.history import History
from punica_scheduler.telemetry.rolling_stats import RollingStats
from punica_scheduler.telemetry.step_stats import StepStats
from punica_scheduler.telemetry.step_time_ratios import StepTimeRatios
from punica_serve.performance.step_time import StepTimeModel
from punica_serve.protocol import ClusterSnapshot, GpuDetails, GpuSnapshot, PromiseCounts


def _ignore(_uuid: str, _ratio: float) -> None:
    pass


class ClusterObserver:
    """Cluster events, rolling statistics and the history of one scheduler.

    With a performance model it also compares steps with it; see ``StepTimeRatios`` for ``warn``.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        incarnation: int,
        model: StepTimeModel | None = None,
        warn: Callable[[str, float], object] = _ignore,
    ) -> None:
        self._scheduler = scheduler
        self._events = ClusterEvents()
        self._events.add("scheduler_started", None, incarnation)
        self._stats = RollingStats()
        self._steps = StepStats()
        self._ratios = StepTimeRatios(model, scheduler.decodes, warn) if model else None
        self._history = History()

    def observe(self, event: Event, actions: Iterable[Action], now_ns: int) -> None:
        """Call it once for each event, with the actions that ``Scheduler.handle`` returned."""
        # Exact types and no patterns: this runs for every report of every GPU.
        for action in actions:
            if type(action) is RecordTokens:
                self._stats.observe(action)
            elif type(action) is RecordEvent:
                self._events.add(action.kind, action.gpu_uuid, now_ns)
                self._forget_ratio(action)
        if type(event) is StepFinished:
            self._steps.observe(event.report)
            if self._ratios:
                self._ratios.observe(event.report)
        elif type(event) is Tick:
            self._sample(now_ns)

    def count_promises(self, promises: PromiseCounts) -> None:
        """Counts promises that a frontend has judged."""
        self._stats.count_promises(promises)

    def snapshot(self, now_ns: int) -> ClusterSnapshot:
        """The scheduler's snapshot, with rolling statistics, promises, cluster events and the tokens of steps."""
        recent = self._stats.figures(self._scheduler.sample(), now_ns)
        cluster = self._scheduler.snapshot(now_ns)
        gpus = tuple(map(self._with_steps, cluster.gpus))
        marks, step_tokens = self._events.snapshot(), self._steps.tokens.snapshot()
        counters = cluster.counters | asdict(self._stats.promises)
        return replace(cluster, gpus=gpus, counters=counters, recent=recent, marks=marks, step_tokens=step_tokens)

    def gpu(self, gpu: str, now_ns: int) -> GpuDetails:
        """The scheduler's details of a GPU. Raises GpuNotFound."""
        details = self._scheduler.gpu_details(gpu, now_ns)
        return replace(details, gpu=self._with_steps(details.gpu))

    def history(self) -> msgspec.Raw:
        """The last minutes: an encoded ClusterHistory."""
        return self._history.encoded()

    def _with_steps(self, gpu: GpuSnapshot) -> GpuSnapshot:
        uuid = gpu.gpu.uuid
        ratio = self._ratios.ratio(uuid) if self._ratios else None
        return replace(gpu, **self._steps.figures(uuid)._asdict(), step_time_ratio=ratio)

    def _forget_ratio(self, event: RecordEvent) -> None:
        if self._ratios and event.gpu_uuid and event.kind in ("gpu_left", "gpu_lost"):
            self._ratios.forget(event.gpu_uuid)

    def _sample(self, now_ns: int) -> None:
        is_due = self._history.is_due(now_ns)
        if is_due or self._stats.is_due(now_ns):
            sample = self._scheduler.sample()
            self._stats.advance(sample, now_ns)
            if is_due:
                steps = tuple(map(self._steps.second, sample.gpu_uuids))
                self._history.add(sample, steps, self._stats.figures(sample, now_ns), now_ns)
        self._steps.advance(now_ns)
