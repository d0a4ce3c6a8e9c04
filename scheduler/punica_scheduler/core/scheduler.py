"""The scheduler's core: events in, actions out.

An event changes the ``ClusterState``, and then the ``placer`` places from the queue's head. Work that is due by the
clock alone (deadlines, drains, consolidation, scale advice) is done at ticks.
"""

from collections import deque
from collections.abc import Collection
from typing import assert_never

from msgspec import Struct
from msgspec.structs import replace

from punica_scheduler.core import events
from punica_scheduler.core.actions import Action, AnnounceLimits, CallAnswered, Forget, RunnerDrained, Warm
from punica_scheduler.core.admission import refusal_on_arrival
from punica_scheduler.core.audit import check_state
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.decode_batch import DecodeBatch, decode_batch
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_snapshot import details_of, snapshot_of
from punica_scheduler.core.outcome import LoggedEvent, Outcome
from punica_scheduler.core.periodic import Periodic
from punica_scheduler.core.placer import Placer
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.settings import SchedulerSettings
from punica_scheduler.core.step_reports import apply_step_report
from punica_serve.errors import ClusterUnavailable, PunicaError, RequestFailed
from punica_serve.protocol import (
    AdapterResidency,
    AssignmentsFailed,
    ClusterSnapshot,
    GpuDetails,
    GpuInfo,
    Limits,
    StepReport,
    WarmAdapter,
    WireError,
)

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
        self._is_settled = self._settings.settle_ns == 0
        self._frontends: set[str] = set()
        self._runners: set[str] = set()
        self._limits = self._with_least(Limits(num_gpus=0))
        self._num_events = 0

    def handle(self, event: events.Event, now_ns: int) -> list[Action]:
        """Actions for an event, in order. ``now_ns`` in nanoseconds. AssertionError: an audit found a bug of ours."""
        outcome = Outcome(now_ns)
        self._fleet.index.now_ns = now_ns
        self.event_log.append(LoggedEvent(now_ns, event, outcome.actions))
        self._apply(event, outcome)
        if self._is_settled:
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
            num_frontends=len(self._frontends),
            num_runners=len(self._runners),
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
        if not self._is_settled:
            raise ClusterUnavailable("the scheduler has just started and does not know yet; try again in a second")
        return self._state.adapters.residency(digests)

    def check_invariants(self) -> None:
        """Audits the state. AssertionError is a bug of ours."""
        check_state(self._state)
        self._placer.check_invariants()

    # -------------------------------------------------------------- events

    def _apply(self, event: events.Event, outcome: Outcome) -> None:
        match event:
            case events.StepFinished():
                self._step_finished(event.report, outcome)
            case events.RequestArrived():
                self._request_arrived(event, outcome)
            case events.RequestCancelled(frontend_id, request_id):
                self._request_cancelled(frontend_id, request_id, outcome)
            case events.AssignmentsFailed(failure):
                self._assignments_failed(failure, outcome)
            case events.FrontendJoined(frontend_id):
                self._frontend_joined(frontend_id, outcome)
            case events.FrontendLost(frontend_id):
                self._frontend_lost(frontend_id, outcome)
            case events.RunnerJoined(runner_id):
                self._runner_lost(runner_id, outcome)
                self._runners.add(runner_id)
            case events.RunnerLost(runner_id):
                self._runner_lost(runner_id, outcome)
            case events.GpuJoined(runner_id, gpu):
                self._gpu_joined(runner_id, gpu, outcome)
            case events.GpuLost(gpu_uuid):
                self._gpu_lost(gpu_uuid, outcome)
            case events.RunnerDrainRequested(runner_id):
                self._runner_drain_requested(runner_id, outcome)
            case events.GpuDrainRequested():
                self._gpu_drain_requested(event, outcome)
            case events.AdaptersCached(runner_id, change):
                self._state.adapters.cached(runner_id, change.gpu_uuid, change.came, change.left)
                came = frozenset(change.came)  # a runner lists its whole disk when it dials
                self._state.waiting.retry_adapters(lambda record: record.digest in came, outcome.now_ns)
            case events.WarmingRequested(frontend_id, call):
                self._warming_requested(frontend_id, call, outcome)
            case events.ForgettingRequested(frontend_id, call):
                self._state.adapters.evict(call.digest)
                outcome.actions.append(CallAnswered(frontend_id, call.call_id))
            case events.Tick():
                self._tick(outcome)
            case _:
                assert_never(event)

    def _step_finished(self, report: StepReport, outcome: Outcome) -> None:
        gpu = self._fleet.gpus.get(report.gpu_uuid)
        if gpu is None:
            return
        # Counters of another incarnation name assignments that this one did not make.
        is_ours = report.incarnation == self._incarnation
        num_tokens = gpu.num_tokens
        broken = apply_step_report(report, gpu, outcome) if is_ours else {}
        self._state.counters["tokens"] += gpu.num_tokens - num_tokens
        self._state.waiting.queue.charge(gpu.working_set.values())
        self._state.quarantine.clear_if_proven()
        resident = gpu.resident
        gpu.account(report, is_ours=is_ours)
        if gpu.resident is not resident:
            self._fleet.index.holders.update(gpu, {*resident, *gpu.resident})
        if report.prefix_hints:
            self._fleet.index.prefixes.add(gpu, report.prefix_hints)
        self._fleet.index.update(gpu)
        for counter, sent in broken.items():
            self._break_stream(gpu.working_set[counter], gpu, sent, outcome)
        for counter, reason in report.finished if is_ours else ():
            if record := gpu.working_set.get(counter):
                self._state.finish(record, reason, outcome)
        lacks_pages = is_ours and bool(report.starved) and not gpu.working_set.keys().isdisjoint(report.starved)
        self._preempt(gpu, lacks_pages, outcome)

    def _break_stream(self, record: RequestRecord, gpu: GpuRecord, sent: str, outcome: Outcome) -> None:
        """Worker and scheduler disagree on a request's position: it starts over from the tokens its client has."""
        expected = record.num_generated
        error = RequestFailed(f"GPU {gpu.info.name} sent {sent} where token {expected} of it had to come")
        self._state.try_again(record, gpu, WireError.of(error), outcome, tell_worker=True)

    def _preempt(self, gpu: GpuRecord, lacks_pages: bool, outcome: Outcome) -> None:
        """Preempts the newest requests of a GPU until its next steps fit (Punica, section 5.3)."""
        # A worker that lacks pages with no stop on its way has fewer than the accounting says: believe the worker.
        while gpu.overflows or (lacks_pages and gpu.working_set and not gpu.kv_pages.awaits_pages):
            self._state.preempt_for_pages(gpu.newest, gpu, outcome)

    def _assignments_failed(self, failure: AssignmentsFailed, outcome: Outcome) -> None:
        gpu = self._fleet.gpus.get(failure.gpu_uuid)
        if gpu is None:
            return
        for assignment in failure.assignments:
            gpu.drop(assignment)
            record = gpu.working_set.get(assignment.counter)
            if record is not None and record.assignment == assignment:
                is_permanent = failure.permanent
                self._state.try_again(record, gpu, failure.error, outcome, tell_worker=False, is_permanent=is_permanent)
        self._fleet.index.update(gpu)

    # -------------------------------------------------------------- frontends and their requests

    def _frontend_joined(self, frontend_id: str, outcome: Outcome) -> None:
        self._frontend_lost(frontend_id, outcome)
        self._frontends.add(frontend_id)
        outcome.actions.append(AnnounceLimits(frontend_id, self._limits))

    def _frontend_lost(self, frontend_id: str, outcome: Outcome) -> None:
        self._frontends.discard(frontend_id)
        for record in [record for record in self._state.requests.values() if record.frontend_id == frontend_id]:
            self._state.cancel(record, outcome)

    def _request_arrived(self, event: events.RequestArrived, outcome: Outcome) -> None:
        record = RequestRecord.of(event.frontend_id, event.handle, event.request, was_admitted=not event.is_new)
        self._state.counters["arrived"] += 1
        previous = self._state.requests.get(record.request_id)
        if previous is not None and previous.frontend_id == record.frontend_id:
            self._state.cancel(previous, outcome)
        knows_gpus = self._is_settled and bool(self._fleet.gpus)
        max_queue = self._settings.max_queue
        error = refusal_on_arrival(record, self._state, max_queue, knows_gpus=knows_gpus)
        if error is None and event.is_new:
            error = self._state.quotas.refusal(record, event.quota, outcome.now_ns)
        if error is not None:
            self._state.counters["failed"] += 1
            outcome.deliver_end(record, "error", WireError.of(error))
        else:
            self._state.admit(record, event.quota, outcome)
        if event.is_new and (limits := self._state.quotas.rate_limits(record, event.quota, outcome.now_ns)):
            outcome.rate_limits[record.frontend_id] = limits

    def _request_cancelled(self, frontend_id: str, request_id: str, outcome: Outcome) -> None:
        record = self._state.requests.get(request_id)
        if record is not None and record.frontend_id == frontend_id:
            self._state.cancel(record, outcome)
            outcome.deliver_end(record, "cancelled")  # so that its GPU time is billed

    # -------------------------------------------------------------- runners and their GPUs

    def _runner_lost(self, runner_id: str, outcome: Outcome) -> None:
        self._runners.discard(runner_id)
        self._state.adapters.lose_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            if self._fleet.is_released(gpu):
                self._state.remove_drained_gpu(gpu, outcome)
            else:
                self._state.lose_gpu(gpu, outcome, is_death=False)
        self._fleet.forget_runner(runner_id)
        self._announce_new_limits(outcome)

    def _gpu_joined(self, runner_id: str, info: GpuInfo, outcome: Outcome) -> None:
        if gpu := self._fleet.gpus.get(info.uuid):
            self._state.lose_gpu(gpu, outcome, is_death=False)
        self._fleet.join(runner_id, info, outcome.now_ns)
        outcome.record_event("gpu_joined", info.uuid)
        self._announce_new_limits(outcome)

    def _gpu_lost(self, uuid: str, outcome: Outcome) -> None:
        if gpu := self._fleet.gpus.get(uuid):
            self._state.lose_gpu(gpu, outcome, is_death=True)
            self._announce_new_limits(outcome)

    def _runner_drain_requested(self, runner_id: str, outcome: Outcome) -> None:
        self._fleet.drain_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            outcome.record_event("gpu_drained", gpu.uuid)
        outcome.has_drained = True
        self._announce_new_limits(outcome)
        self._move_from_draining(outcome)

    def _gpu_drain_requested(self, event: events.GpuDrainRequested, outcome: Outcome) -> None:
        try:
            uuid = self._fleet.drain_gpu(event.gpu, event.drain)
        except PunicaError as error:
            outcome.actions.append(CallAnswered(event.frontend_id, event.call_id, WireError.of(error)))
            return
        outcome.record_event("gpu_drained" if event.drain else "gpu_taken_back", uuid)
        self._announce_new_limits(outcome)
        outcome.actions.append(CallAnswered(event.frontend_id, event.call_id))
        self._move_from_draining(outcome)

    def _warming_requested(self, frontend_id: str, call: WarmAdapter, outcome: Outcome) -> None:
        try:
            gpus = self._state.adapters.warm(call.adapter.digest, call.gpus)
        except PunicaError as error:
            outcome.actions.append(CallAnswered(frontend_id, call.call_id, WireError.of(error)))
            return
        outcome.actions += [Warm(gpu.uuid, call.adapter, call.pin) for gpu in gpus]
        outcome.actions.append(CallAnswered(frontend_id, call.call_id))

    def _evict_adapters(self, outcome: Outcome) -> None:
        for digest in self._state.adapters.take_evictable():
            outcome.actions += [Forget(runner_id, digest) for runner_id in sorted(self._runners)]

    def _move_from_draining(self, outcome: Outcome) -> None:
        draining = self._fleet.draining
        if not self._is_settled or not draining:
            return
        for gpu in draining:
            self._state.waiting.release_pinned(gpu.uuid)
            self._state.hints.lost(gpu)
        self._placer.move_away(draining, outcome)

    def _announce_new_limits(self, outcome: Outcome) -> None:
        limits = self._with_least(self._fleet.limits)
        if limits != self._limits:
            self._limits = limits
            outcome.actions += [AnnounceLimits(frontend_id, limits) for frontend_id in sorted(self._frontends)]

    def _with_least(self, limits: Limits) -> Limits:
        """Adds the shortest times that may be promised, which no change of the fleet changes."""
        settings = self._settings
        return replace(
            limits,
            least_first_token_s=settings.least_first_token_s,
            least_time_per_token_s=settings.least_time_per_token_s,
        )

    # -------------------------------------------------------------- due by the clock

    def _tick(self, outcome: Outcome) -> None:
        self._is_settled = self._is_settled or outcome.now_ns >= self._incarnation + self._settings.settle_ns
        self._periodic.advance_quotas(outcome)
        self._periodic.end_waits(outcome)
        if self._is_settled:
            self._move_from_draining(outcome)
            self._periodic.consolidate(outcome)
            self._periodic.advise(outcome)
