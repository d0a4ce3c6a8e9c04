"""The scheduler's core: events in, actions out.

An event changes the ``books`` by their few primitives, and then the ``placer`` places from the queue's head. What
happens by the clock alone (deadlines, what is left of drains, consolidation, scale advice) happens at ticks.
"""

from collections import deque
from collections.abc import Collection
from typing import assert_never

import msgspec

from punica_scheduler import events
from punica_scheduler.actions import Action, AnnounceLimits, CallAnswered, Forget, RunnerDrained, Warm
from punica_scheduler.admission import refusal_on_arrival
from punica_scheduler.audit import check_books
from punica_scheduler.books import Books
from punica_scheduler.decision import Decision, StoryEntry
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.history import History
from punica_scheduler.intake import take_tokens
from punica_scheduler.periodic import Periodic
from punica_scheduler.placer import Placer
from punica_scheduler.request import RequestRecord
from punica_scheduler.settings import SchedulerSettings
from punica_serve.errors import ClusterUnavailable, PunicaError, RequestFailed
from punica_serve.protocol import (
    AdapterResidency,
    AssignmentsFailed,
    ClusterSnapshot,
    GpuInfo,
    Limits,
    StepReport,
    WarmAdapter,
    WireError,
)

#: Events that the story remembers. What it holds is kept from being used again while it is in a core's cache: 128
#: events cost a tenth of all else, a thousand a fifth.
STORY_LENGTH = 32


class Scheduler:
    """The one global view. No I/O and no clock: ``handle`` is told the time, in nanoseconds, and says what to do.

    ``incarnation`` is the start time.
    """

    def __init__(self, incarnation: int, settings: SchedulerSettings | None = None) -> None:
        self._incarnation = incarnation
        self._settings = settings or SchedulerSettings()
        #: The newest events and what they led to.
        self.story: deque[StoryEntry] = deque(maxlen=STORY_LENGTH)
        self._books = Books(incarnation, self._settings, self.story)
        self._fleet = self._books.fleet
        self._placer = Placer(self._books, self._settings.placement)
        self._periodic = Periodic(self._books, self._settings)
        self._is_settled = self._settings.settle_ns == 0
        self._frontends: set[str] = set()
        self._runners: set[str] = set()
        self._limits = Limits(num_gpus=0)
        self._num_events = 0
        self._history = History()

    def handle(self, event: events.Event, now_ns: int) -> list[Action]:
        """What to do about an event, in order. AssertionError: the books are wrong, and they are audited."""
        decision = Decision(now_ns)
        self.story.append(StoryEntry(now_ns, event, decision.actions))
        self._apply(event, decision)
        if self._is_settled:
            self._placer.place_what_waits(decision)
            self._forget_adapters(decision)
        if decision.has_drained:
            decision.actions += map(RunnerDrained, self._fleet.take_drained_runners())
        actions = decision.conclude()
        self._num_events += 1
        if self._settings.audit_every and self._num_events % self._settings.audit_every == 0:
            self.check_invariants()
        return actions

    def snapshot(self, now_ns: int) -> ClusterSnapshot:
        """The cluster as people see it."""
        return ClusterSnapshot(
            incarnation=self._incarnation,
            now_ns=now_ns,
            gpus=tuple(gpu.snapshot(now_ns) for _, gpu in sorted(self._fleet.gpus.items())),
            queue_length=len(self._books.waiting),
            num_frontends=len(self._frontends),
            num_runners=len(self._runners),
            counters=dict(self._books.counters),
            advice=self._periodic.latest_advice,
            recent=self._books.recent.figures(self._books.counters, now_ns),
            marks=self._books.marks.snapshot(),
        )

    def history(self) -> msgspec.Raw:
        """What it was like in the last minutes: an encoded ClusterHistory."""
        return self._history.encoded()

    def residency(self, digests: Collection[str]) -> tuple[AdapterResidency, ...]:
        """Where these adapters are, or all. Raises ClusterUnavailable while frontends may still tell who is in use."""
        if not self._is_settled:
            raise ClusterUnavailable("the scheduler has just started and does not know yet; try again in a second")
        return self._books.adapters.residency(digests)

    def check_invariants(self) -> None:
        """Audits the books. AssertionError is a bug of ours."""
        check_books(self._books)
        self._placer.check_invariants()

    # -------------------------------------------------------------- events

    def _apply(self, event: events.Event, decision: Decision) -> None:
        match event:
            case events.StepFinished():
                self._step_finished(event.report, decision)
            case events.RequestArrived():
                self._request_arrived(event, decision)
            case events.RequestCancelled(frontend_id, request_id):
                self._request_cancelled(frontend_id, request_id, decision)
            case events.AssignmentsFailed(failure):
                self._assignments_failed(failure, decision)
            case events.FrontendJoined(frontend_id):
                self._frontend_joined(frontend_id, decision)
            case events.FrontendLost(frontend_id):
                self._frontend_lost(frontend_id, decision)
            case events.RunnerJoined(runner_id):
                self._runner_lost(runner_id, decision)
                self._runners.add(runner_id)
            case events.RunnerLost(runner_id):
                self._runner_lost(runner_id, decision)
            case events.GpuJoined(runner_id, gpu):
                self._gpu_joined(runner_id, gpu, decision)
            case events.GpuLost(gpu_uuid):
                self._gpu_lost(gpu_uuid, decision)
            case events.RunnerDrainRequested(runner_id):
                self._runner_drain_requested(runner_id, decision)
            case events.GpuDrainRequested():
                self._gpu_drain_requested(event, decision)
            case events.AdaptersCached(runner_id, change):
                self._books.adapters.cached(runner_id, change.gpu_uuid, change.came, change.left)
                came = frozenset(change.came)  # a runner that dials tells of all that its disk holds
                self._books.waiting.call_back(lambda record: record.digest in came, decision.now_ns)
            case events.WarmingRequested(frontend_id, call):
                self._warming_requested(frontend_id, call, decision)
            case events.ForgettingRequested(frontend_id, call):
                self._books.adapters.forget(call.digest)
                decision.actions.append(CallAnswered(frontend_id, call.call_id))
            case events.Tick():
                self._tick(decision)
            case _:
                assert_never(event)

    def _step_finished(self, report: StepReport, decision: Decision) -> None:
        gpu = self._fleet.gpus.get(report.gpu_uuid)
        if gpu is None:
            return
        # Counters of another incarnation are of assignments that this one knows nothing of.
        is_ours = report.incarnation == self._incarnation
        num_tokens = gpu.num_tokens
        broken = take_tokens(report, gpu, self._books.recent, decision) if is_ours else {}
        self._books.counters["tokens"] += gpu.num_tokens - num_tokens
        self._books.waiting.queue.charge(gpu.working_set.values())
        self._books.trials.note_progress()
        gpu.account(report)
        self._fleet.index.update(gpu)
        for counter, sent in broken.items():
            self._break_stream(gpu.working_set[counter], gpu, sent, decision)
        for counter, reason in report.finished if is_ours else ():
            if record := gpu.working_set.get(counter):
                self._books.finish(record, reason, decision)
        is_starved = is_ours and bool(report.starved) and not gpu.working_set.keys().isdisjoint(report.starved)
        self._evict(gpu, is_starved, decision)

    def _break_stream(self, record: RequestRecord, gpu: GpuRecord, sent: str, decision: Decision) -> None:
        """The worker and we disagree on where a request is: it starts over from what its client has."""
        expected = record.num_generated
        error = RequestFailed(f"GPU {gpu.uuid} sent {sent} where token {expected} of it had to come")
        self._books.try_again(record, gpu, WireError.of(error), decision, tell_worker=True)

    def _evict(self, gpu: GpuRecord, is_starved: bool, decision: Decision) -> None:
        """Takes the newest requests off a GPU until the next steps fit: those that came first go on (Punica, 5.3)."""
        # A worker that lacks pages though none are on their way has fewer than the book says: believe the worker.
        while gpu.overflows or (is_starved and gpu.working_set and not gpu.book.awaits_pages):
            self._books.evict(gpu.newest, gpu, decision)

    def _assignments_failed(self, failure: AssignmentsFailed, decision: Decision) -> None:
        gpu = self._fleet.gpus.get(failure.gpu_uuid)
        if gpu is None:
            return
        for assignment in failure.assignments:
            gpu.drop(assignment)
            record = gpu.working_set.get(assignment.counter)
            if record is not None and record.assignment == assignment:
                is_permanent = failure.permanent
                self._books.try_again(
                    record, gpu, failure.error, decision, tell_worker=False, is_permanent=is_permanent
                )
        self._fleet.index.update(gpu)

    # -------------------------------------------------------------- frontends and their requests

    def _frontend_joined(self, frontend_id: str, decision: Decision) -> None:
        self._frontend_lost(frontend_id, decision)
        self._frontends.add(frontend_id)
        decision.actions.append(AnnounceLimits(frontend_id, self._limits))

    def _frontend_lost(self, frontend_id: str, decision: Decision) -> None:
        self._frontends.discard(frontend_id)
        for record in [record for record in self._books.requests.values() if record.frontend_id == frontend_id]:
            self._books.cancel(record, decision)

    def _request_arrived(self, event: events.RequestArrived, decision: Decision) -> None:
        record = RequestRecord.of(event.frontend_id, event.handle, event.request)
        record.is_owed = not event.is_new
        self._books.counters["arrived"] += 1
        previous = self._books.requests.get(record.request_id)
        if previous is not None and previous.frontend_id == record.frontend_id:
            self._books.cancel(previous, decision)
        knows_gpus = self._is_settled and bool(self._fleet.gpus)
        max_queue = self._settings.max_queue
        error = refusal_on_arrival(record, self._books, max_queue, knows_gpus=knows_gpus)
        if error is None and event.is_new:
            error = self._books.quotas.refusal(record, event.quota, decision.now_ns)
        if error is not None:
            self._books.counters["failed"] += 1
            decision.deliver_end(record, "error", WireError.of(error))
        else:
            self._books.admit(record, event.quota, decision)

    def _request_cancelled(self, frontend_id: str, request_id: str, decision: Decision) -> None:
        record = self._books.requests.get(request_id)
        if record is not None and record.frontend_id == frontend_id:
            self._books.cancel(record, decision)
            decision.deliver_end(record, "cancelled")  # for its GPU time; nobody waits for it

    # -------------------------------------------------------------- runners and their GPUs

    def _runner_lost(self, runner_id: str, decision: Decision) -> None:
        self._runners.discard(runner_id)
        self._books.adapters.lose_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            if self._fleet.is_released(gpu):
                self._books.part_with(gpu, decision)
            else:
                self._books.lose_gpu(gpu, decision, is_death=False)
        self._fleet.forget_runner(runner_id)
        self._announce_new_limits(decision)

    def _gpu_joined(self, runner_id: str, info: GpuInfo, decision: Decision) -> None:
        if gpu := self._fleet.gpus.get(info.uuid):
            self._books.lose_gpu(gpu, decision, is_death=False)
        self._fleet.join(runner_id, info, decision.now_ns)
        self._books.marks.add("gpu_joined", info.uuid, decision.now_ns)
        self._announce_new_limits(decision)

    def _gpu_lost(self, uuid: str, decision: Decision) -> None:
        if gpu := self._fleet.gpus.get(uuid):
            self._books.lose_gpu(gpu, decision, is_death=True)
            self._announce_new_limits(decision)

    def _runner_drain_requested(self, runner_id: str, decision: Decision) -> None:
        self._fleet.drain_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            self._books.marks.add("gpu_drained", gpu.uuid, decision.now_ns)
        decision.has_drained = True
        self._announce_new_limits(decision)
        self._move_from_draining(decision)

    def _gpu_drain_requested(self, event: events.GpuDrainRequested, decision: Decision) -> None:
        try:
            self._fleet.drain_gpu(event.gpu_uuid, event.drain)
        except PunicaError as error:
            decision.actions.append(CallAnswered(event.frontend_id, event.call_id, WireError.of(error)))
            return
        self._books.marks.add("gpu_drained" if event.drain else "gpu_taken_back", event.gpu_uuid, decision.now_ns)
        self._announce_new_limits(decision)
        decision.actions.append(CallAnswered(event.frontend_id, event.call_id))
        self._move_from_draining(decision)

    def _warming_requested(self, frontend_id: str, call: WarmAdapter, decision: Decision) -> None:
        try:
            gpus = self._books.adapters.warm(call.adapter.digest, call.gpu_uuids)
        except PunicaError as error:
            decision.actions.append(CallAnswered(frontend_id, call.call_id, WireError.of(error)))
            return
        decision.actions += [Warm(gpu.uuid, call.adapter, call.pin) for gpu in gpus]
        decision.actions.append(CallAnswered(frontend_id, call.call_id))

    def _forget_adapters(self, decision: Decision) -> None:
        for digest in self._books.adapters.take_forgettable():
            decision.actions += [Forget(runner_id, digest) for runner_id in sorted(self._runners)]

    def _move_from_draining(self, decision: Decision) -> None:
        draining = self._fleet.draining
        if not self._is_settled or not draining:
            return
        for gpu in draining:
            self._books.waiting.free_homebound(gpu.uuid)
        self._placer.move_away(draining, decision)

    def _announce_new_limits(self, decision: Decision) -> None:
        limits = self._fleet.limits
        if limits != self._limits:
            self._limits = limits
            decision.actions += [AnnounceLimits(frontend_id, limits) for frontend_id in sorted(self._frontends)]

    # -------------------------------------------------------------- what happens by the clock

    def _tick(self, decision: Decision) -> None:
        self._is_settled = self._is_settled or decision.now_ns >= self._incarnation + self._settings.settle_ns
        self._periodic.let_minutes_pass(decision)
        self._periodic.end_waits(decision)
        if self._is_settled:
            self._move_from_draining(decision)
            self._periodic.consolidate(decision)
            self._periodic.advise(decision)
        self._look_back(decision.now_ns)

    def _look_back(self, now_ns: int) -> None:
        books = self._books
        books.recent.let_pass(books.counters, now_ns)
        if self._history.is_due(now_ns):
            recent = books.recent.figures(books.counters, now_ns)
            self._history.sample(self._fleet.gpus.values(), books.counters, len(books.waiting), recent, now_ns)
