"""The scheduler's core: events in, actions out.

An event changes the ``ClusterState``, by ``frontend_events``, ``runner_events`` or ``worker_events``, and then the
``placer`` places from the queue's head. Work that is due by the clock alone (deadlines, drains, consolidation, scale
advice) is done at ticks.
"""

from collections import deque
from collections.abc import Collection
from typing import assert_never

from msgspec import Struct

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, Forget, RunnerDrained
from punica_scheduler.core.audit import check_state
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.decode_batch import DecodeBatch, decode_batch
from punica_scheduler.core.frontend_events import FrontendEvents
from punica_scheduler.core.gpu_snapshot import details_of, snapshot_of
from punica_scheduler.core.limits_announcer import LimitsAnnouncer
from punica_scheduler.core.outcome import LoggedEvent, Outcome
from punica_scheduler.core.periodic import Periodic
from punica_scheduler.core.placer import Placer
from punica_scheduler.core.runner_events import RunnerEvents
from punica_scheduler.core.settings import SchedulerSettings
from punica_scheduler.core.worker_events import WorkerEvents
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import AdapterResidency, ClusterSnapshot, GpuDetails

#: Events that the event log keeps. Their memory can't be reused while it is in the CPU's cache: 128 events slow the
#: scheduler down by a tenth, a thousand by a fifth.
EVENT_LOG_LENGTH = 32


class ClusterSample(Struct, frozen=True):
    """Counters since the start, and gauges of now. The last three have one entry for each GPU."""

    num_arrived: int
    num_tokens: int
    queue_length: int
    gpu_uuids: tuple[str, ...]
    gpu_names: tuple[str, ...]
    used_kv_pages: tuple[int, ...]


class Scheduler:
    """The one global view. No I/O and no clock: ``handle`` takes an event and the time, and returns actions.

    ``incarnation`` is the start time.
    """

    def __init__(self, incarnation: int, settings: SchedulerSettings | None = None) -> None:
        self._incarnation = incarnation
        self._settings = settings or SchedulerSettings()
        #: The newest events with their actions, for bug reports.
        self.event_log: deque[LoggedEvent] = deque(maxlen=EVENT_LOG_LENGTH)
        self._state = ClusterState(incarnation, self._settings, self.event_log)
        self._fleet = self._state.fleet
        self._placer = Placer(self._state, self._settings.placement)
        self._periodic = Periodic(self._state, self._settings)
        self._limits = LimitsAnnouncer(self._fleet, self._settings)
        self._frontends = FrontendEvents(self._state, self._limits, self._settings.max_queue)
        self._runners = RunnerEvents(self._state, self._limits, self._placer)
        self._workers = WorkerEvents(self._state, incarnation)
        self._num_events = 0

    def handle(self, event: events.Event, now_ns: int) -> list[Action]:
        """Actions for an event, in order. ``now_ns`` in nanoseconds. AssertionError: an audit found a bug of ours."""
        outcome = Outcome(now_ns)
        self._fleet.index.now_ns = now_ns
        self.event_log.append(LoggedEvent(now_ns, event, outcome.actions))
        self._apply(event, outcome)
        if self._state.is_settled:
            self._placer.place_what_waits(outcome)
            self._state.hints.give(outcome)
            self._evict_adapters(outcome)
        if outcome.has_drained:
            outcome.actions += map(RunnerDrained, self._fleet.take_drained_runners())
        actions = outcome.take_actions()
        self._num_events += 1
        if self._settings.audit_every and self._num_events % self._settings.audit_every == 0:
            self.check_invariants()
        return actions

    def snapshot(self, now_ns: int) -> ClusterSnapshot:
        """The cluster as people see it, without telemetry; see ``ClusterObserver.snapshot``."""
        return ClusterSnapshot(
            incarnation=self._incarnation,
            now_ns=now_ns,
            gpus=tuple(snapshot_of(gpu, now_ns) for _, gpu in sorted(self._fleet.gpus.items())),
            queue_length=len(self._state.waiting),
            num_frontends=len(self._limits),
            num_runners=len(self._runners.runners),
            counters=dict(self._state.counters),
            advice=self._periodic.latest_advice,
        )

    def sample(self) -> ClusterSample:
        """Counters and gauges for telemetry; cheaper than a snapshot."""
        counters = self._state.counters
        return ClusterSample(
            counters["arrived"],
            counters["tokens"],
            len(self._state.waiting),
            tuple(self._fleet.gpus),
            tuple([gpu.info.name for gpu in self._fleet.gpus.values()]),
            tuple([gpu.num_used_kv_pages for gpu in self._fleet.gpus.values()]),
        )

    def decodes(self, gpu_uuid: str) -> DecodeBatch | None:
        """The GPU's working set as a batch. None for an unknown GPU, and while a request there has no token yet."""
        gpu = self._fleet.gpus.get(gpu_uuid)
        return None if gpu is None or len(gpu.load_sums.prefills) else decode_batch(gpu)

    def gpu_details(self, gpu: str, now_ns: int) -> GpuDetails:
        """A GPU, by UUID or name, with its requests, without telemetry. Raises GpuNotFound."""
        return details_of(self._fleet.get(gpu, param="gpu"), now_ns)

    def residency(self, digests: Collection[str]) -> tuple[AdapterResidency, ...]:
        """Where these adapters are, or all. Raises ClusterUnavailable while frontends still add theirs."""
        if not self._state.is_settled:
            raise ClusterUnavailable("the scheduler has just started and does not know yet; try again in a second")
        return self._state.adapters.residency(digests)

    def check_invariants(self) -> None:
        """Audits the state. AssertionError is a bug of ours."""
        check_state(self._state)
        self._placer.check_invariants()

    def _apply(self, event: events.Event, outcome: Outcome) -> None:
        match event:
            case events.StepFinished(report):
                self._workers.step_finished(report, outcome)
            case events.AssignmentsFailed(failure):
                self._workers.assignments_failed(failure, outcome)
            case events.RequestArrived():
                self._frontends.request_arrived(event, outcome)
            case events.RequestCancelled(frontend_id, request_id):
                self._frontends.request_cancelled(frontend_id, request_id, outcome)
            case events.FrontendJoined(frontend_id):
                self._frontends.joined(frontend_id, outcome)
            case events.FrontendLost(frontend_id):
                self._frontends.lost(frontend_id, outcome)
            case events.WarmingRequested(frontend_id, call):
                self._frontends.warming_requested(frontend_id, call, outcome)
            case events.ForgettingRequested(frontend_id, call):
                self._frontends.forgetting_requested(frontend_id, call, outcome)
            case events.RunnerJoined(runner_id):
                self._runners.joined(runner_id, outcome)
            case events.RunnerLost(runner_id):
                self._runners.lost(runner_id, outcome)
            case events.RunnerDrainRequested(runner_id):
                self._runners.drain_requested(runner_id, outcome)
            case events.GpuJoined(runner_id, gpu):
                self._runners.gpu_joined(runner_id, gpu, outcome)
            case events.GpuLost(gpu_uuid):
                self._runners.gpu_lost(gpu_uuid, outcome)
            case events.GpuDrainRequested():
                self._runners.gpu_drain_requested(event, outcome)
            case events.AdaptersCached():
                self._runners.adapters_cached(event, outcome)
            case events.Tick():
                self._tick(outcome)
            case _:
                assert_never(event)

    def _evict_adapters(self, outcome: Outcome) -> None:
        for digest in self._state.adapters.take_evictable():
            outcome.actions += [Forget(runner_id, digest) for runner_id in sorted(self._runners.runners)]

    def _tick(self, outcome: Outcome) -> None:
        """Does what is due by the clock."""
        if outcome.now_ns >= self._incarnation + self._settings.settle_ns:
            self._state.is_settled = True
        self._periodic.advance_quotas(outcome)
        self._periodic.end_waits(outcome)
        if self._state.is_settled:
            self._placer.empty_draining(outcome)
            self._periodic.consolidate(outcome)
            self._periodic.advise(outcome)
