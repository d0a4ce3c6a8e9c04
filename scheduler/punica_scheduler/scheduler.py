"""The scheduler's core: events in, actions out.

An event changes the ``books`` by their few primitives, and then the ``placer`` places from the queue's head. What
happens by the clock alone (deadlines, what is left of drains, consolidation, scale advice) happens at ticks.
"""

from collections import deque
from typing import assert_never

from punica_scheduler import consolidation, events
from punica_scheduler.actions import Action, Advise, AnnounceLimits, DrainAnswered, RunnerDrained
from punica_scheduler.admission import refusal, too_long_to_send
from punica_scheduler.advice import ScaleAdvisor
from punica_scheduler.audit import check_books
from punica_scheduler.books import Books
from punica_scheduler.decision import Decision, StoryEntry
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.intake import take_tokens
from punica_scheduler.placer import Placer
from punica_scheduler.request import RequestRecord
from punica_scheduler.settings import SchedulerSettings
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError, RequestFailed
from punica_serve.protocol import AssignmentsFailed, ClusterSnapshot, GpuInfo, Limits, StepReport, WireError

#: Events that the story remembers: some seconds of a busy cluster.
STORY_LENGTH = 1000


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
        self._advisor = ScaleAdvisor(self._settings.scale)
        self._is_settled = self._settings.settle_ns == 0
        self._frontends: set[str] = set()
        self._runners: set[str] = set()
        self._limits = Limits(num_gpus=0)
        self._next_consolidation_ns = 0
        self._num_events = 0

    def handle(self, event: events.Event, now_ns: int) -> list[Action]:
        """What to do about an event, in order. Raises AssertionError when the books are wrong, if they are audited."""
        decision = Decision(now_ns)
        self.story.append(StoryEntry(now_ns, event, decision.actions))
        self._apply(event, decision)
        if self._is_settled:
            self._placer.place_what_waits(decision)
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
            gpus=tuple(gpu.snapshot() for _, gpu in sorted(self._fleet.gpus.items())),
            queue_length=len(self._books.waiting),
            num_frontends=len(self._frontends),
            num_runners=len(self._runners),
            counters=dict(self._books.counters),
            advice=self._advisor.advice,
        )

    def check_invariants(self) -> None:
        """Audits the books. AssertionError is a bug of ours."""
        check_books(self._books)
        self._placer.check_invariants()

    # -------------------------------------------------------------- events

    def _apply(self, event: events.Event, decision: Decision) -> None:
        match event:
            case events.StepFinished(report):
                self._step_finished(report, decision)
            case events.RequestArrived(frontend_id, handle, request):
                self._request_arrived(RequestRecord.of(frontend_id, handle, request), decision)
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
        broken = take_tokens(report, gpu, decision) if is_ours else {}
        self._books.counters["tokens"] += gpu.num_tokens - num_tokens
        self._books.waiting.queue.charge(gpu.working_set.values())
        self._books.trials.note_progress()
        gpu.account(report)
        self._fleet.index.update(gpu)
        for counter, position in broken.items():
            self._break_stream(gpu.working_set[counter], gpu, position, decision)
        for counter, reason in report.finished if is_ours else ():
            if record := gpu.working_set.get(counter):
                self._books.finish(record, reason, decision)
        is_starved = is_ours and bool(report.starved) and not gpu.working_set.keys().isdisjoint(report.starved)
        self._evict(gpu, is_starved, decision)

    def _break_stream(self, record: RequestRecord, gpu: GpuRecord, position: int, decision: Decision) -> None:
        """The worker and we disagree on where a request is: it starts over from what its client has."""
        expected = len(record.generated_ids)
        error = RequestFailed(f"GPU {gpu.uuid} sent token {position} of it where {expected} had to come")
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

    def _request_arrived(self, record: RequestRecord, decision: Decision) -> None:
        self._books.counters["arrived"] += 1
        previous = self._books.requests.get(record.request_id)
        if previous is not None and previous.frontend_id == record.frontend_id:
            self._books.cancel(previous, decision)
        if error := self._refusal_on_arrival(record):
            self._books.counters["failed"] += 1
            decision.deliver_end(record, "error", WireError.of(error))
        else:
            self._books.admit(record, decision)

    def _refusal_on_arrival(self, record: RequestRecord) -> PunicaError | None:
        if record.request_id in self._books.requests:
            return InvalidRequest("another frontend has a request of this id; ids must be unique", param="request_id")
        if error := too_long_to_send(record.request):
            return error
        num_waiting = len(self._books.waiting)
        # A stream that has begun was admitted once; a restart of ours must not break it.
        if num_waiting >= self._settings.max_queue and not record.generated_ids:
            return OutOfCapacity(f"{num_waiting} requests wait for a GPU already; try again later")
        return refusal(record, self._fleet.capacities) if self._is_settled and self._fleet.gpus else None

    def _request_cancelled(self, frontend_id: str, request_id: str, decision: Decision) -> None:
        record = self._books.requests.get(request_id)
        if record is not None and record.frontend_id == frontend_id:
            self._books.cancel(record, decision)

    # -------------------------------------------------------------- runners and their GPUs

    def _runner_lost(self, runner_id: str, decision: Decision) -> None:
        self._runners.discard(runner_id)
        self._fleet.forget_runner(runner_id)
        for gpu in self._fleet.of_runner(runner_id):
            self._books.lose_gpu(gpu, decision, is_death=False)
        self._announce_new_limits(decision)

    def _gpu_joined(self, runner_id: str, info: GpuInfo, decision: Decision) -> None:
        if gpu := self._fleet.gpus.get(info.uuid):
            self._books.lose_gpu(gpu, decision, is_death=False)
        self._fleet.join(runner_id, info, decision.now_ns)
        self._announce_new_limits(decision)

    def _gpu_lost(self, uuid: str, decision: Decision) -> None:
        if gpu := self._fleet.gpus.get(uuid):
            self._books.lose_gpu(gpu, decision, is_death=True)
            self._announce_new_limits(decision)

    def _runner_drain_requested(self, runner_id: str, decision: Decision) -> None:
        self._fleet.drain_runner(runner_id)
        decision.has_drained = True
        self._move_from_draining(decision)

    def _gpu_drain_requested(self, event: events.GpuDrainRequested, decision: Decision) -> None:
        try:
            self._fleet.drain_gpu(event.gpu_uuid, event.drain)
        except PunicaError as error:
            decision.actions.append(DrainAnswered(event.frontend_id, event.call_id, WireError.of(error)))
            return
        decision.actions.append(DrainAnswered(event.frontend_id, event.call_id))
        self._move_from_draining(decision)

    def _move_from_draining(self, decision: Decision) -> None:
        if not self._is_settled:
            return
        draining = self._fleet.draining
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
        self._end_waits(decision)
        if self._is_settled:
            self._move_from_draining(decision)
            self._consolidate(decision)
            self._advise(decision)

    def _end_waits(self, decision: Decision) -> None:
        timeout_ns = self._settings.queue_timeout_ns
        for record in [record for record in self._books.waiting if record.queued_ns <= decision.now_ns - timeout_ns]:
            error = f"no GPU had room for the request for {timeout_ns / 1e9:g} s; try again later"
            self._books.fail(record, WireError.of(OutOfCapacity(error)), decision)

    def _consolidate(self, decision: Decision) -> None:
        rule = self._settings.consolidation
        if rule is None or decision.now_ns < self._next_consolidation_ns:
            return
        self._next_consolidation_ns = decision.now_ns + rule.interval_ns
        if self._books.waiting or not self._books.trials.is_idle:
            return
        moves = consolidation.plan(self._fleet.gpus.values(), self._fleet.index, rule)
        for record, gpu in moves:
            record.was_consolidated = True
            self._books.move(record, gpu, decision)
        self._books.counters["consolidations"] += bool(moves)

    def _advise(self, decision: Decision) -> None:
        before = self._advisor.advice
        advice = self._advisor.look(self._fleet.gpus.values(), len(self._books.waiting), decision.now_ns)
        if advice != before:
            decision.actions.append(Advise(advice))
