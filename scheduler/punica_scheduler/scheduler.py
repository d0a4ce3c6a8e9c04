"""The scheduler's core: events in, actions out.

Whatever takes a request off a GPU (eviction, a lost GPU, a failure that may have been the GPU's) puts it back into the
queue at its place by arrival, with what it has generated; and every event ends by placing from the queue's head. So
there is one way to run a request, and one place that decides where. Requests that may have killed their workers wait
beside the queue, for a GPU of their own: see ``trials``.
"""

from collections import Counter, deque
from itertools import repeat
from typing import assert_never

from punica_scheduler import events
from punica_scheduler.actions import Action, AnnounceLimits, Start, Stop
from punica_scheduler.admission import refusal, too_long_to_send
from punica_scheduler.audit import check_books
from punica_scheduler.decision import Decision, StoryEntry
from punica_scheduler.fcfs_queue import FcfsQueue
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.placement import Placement, punica
from punica_scheduler.request import NUM_SUSPICIOUS_LOSSES, RequestRecord, RequestState
from punica_scheduler.trials import Trials, convicted
from punica_serve.errors import InvalidRequest, OutOfCapacity, PunicaError, RequestFailed
from punica_serve.protocol import (
    AssignmentId,
    AssignmentsFailed,
    ClusterSnapshot,
    Limits,
    StepReport,
    WireError,
)

#: Assignments of a request that may end in a failure of the GPU's or a broken stream before it fails itself.
MAX_TRIES = 3
#: Events that the story remembers: some seconds of a busy cluster.
STORY_LENGTH = 1000

COUNTERS = ("arrived", "finished", "cancelled", "failed", "tokens", "evictions", "migrations", "gpus_lost")


class Scheduler:
    """The one global view. No I/O and no clock: ``handle`` is told the time, in nanoseconds, and says what to do.

    ``incarnation`` is the start time, so that no assignment id is ever used twice. For ``settle_ns`` from then on
    nothing is placed or refused for its size: after a restart GPUs and requests come back in any order.
    """

    def __init__(
        self,
        incarnation: int,
        *,
        placement: Placement = punica,
        max_queue: int = 10_000,
        queue_timeout_ns: int = 600 * 10**9,
        settle_ns: int = 0,
    ) -> None:
        self._incarnation = incarnation
        self._placement = placement
        self._max_queue = max_queue
        self._queue_timeout_ns = queue_timeout_ns
        self._settled_ns = incarnation + settle_ns
        self._is_settled = settle_ns == 0
        self._num_assignments = 0
        self._frontends: set[str] = set()
        self._runners: set[str] = set()
        self._gpus: dict[str, GpuRecord] = {}
        self._requests: dict[str, RequestRecord] = {}
        self._queue = FcfsQueue()
        self._trials = Trials(self._queue)
        self._limits = Limits(num_gpus=0)
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        #: The newest events and what they led to.
        self.story: deque[StoryEntry] = deque(maxlen=STORY_LENGTH)

    def handle(self, event: events.Event, now_ns: int) -> list[Action]:
        """What to do about an event, in order."""
        decision = Decision(now_ns)
        self.story.append(StoryEntry(now_ns, event, decision.actions))
        self._apply(event, decision)
        self._place_what_waits(decision)
        self._announce_new_limits(decision)
        return decision.conclude()

    def snapshot(self, now_ns: int) -> ClusterSnapshot:
        """The cluster as people see it."""
        return ClusterSnapshot(
            incarnation=self._incarnation,
            now_ns=now_ns,
            gpus=tuple(gpu.snapshot() for _, gpu in sorted(self._gpus.items())),
            queue_length=len(self._queue),
            num_frontends=len(self._frontends),
            num_runners=len(self._runners),
            counters=dict(self._counters),
        )

    def check_invariants(self) -> None:
        """Audits the books. AssertionError is a bug of ours."""
        check_books(self._requests, self._gpus, self._queue, self._trials, self._counters)

    # -------------------------------------------------------------- events

    def _apply(self, event: events.Event, decision: Decision) -> None:
        match event:
            case events.FrontendJoined(frontend_id):
                self._frontend_joined(frontend_id, decision)
            case events.FrontendLost(frontend_id):
                self._frontend_lost(frontend_id, decision)
            case events.RequestArrived(frontend_id, handle, request):
                self._request_arrived(RequestRecord.of(frontend_id, handle, request), decision)
            case events.RequestCancelled(frontend_id, request_id):
                self._request_cancelled(frontend_id, request_id, decision)
            case events.RunnerJoined(runner_id):
                self._runner_lost(runner_id, decision)
                self._runners.add(runner_id)
            case events.RunnerLost(runner_id):
                self._runner_lost(runner_id, decision)
            case events.GpuJoined(runner_id, gpu):
                self._gpu_lost(gpu.uuid, decision)
                self._gpus[gpu.uuid] = GpuRecord(gpu, runner_id)
            case events.GpuLost(gpu_uuid):
                self._gpu_lost(gpu_uuid, decision)
            case events.StepFinished(report):
                self._step_finished(report, decision)
            case events.AssignmentsFailed(failure):
                self._assignments_failed(failure, decision)
            case events.Tick():
                self._tick(decision)
            case _:
                assert_never(event)

    def _frontend_joined(self, frontend_id: str, decision: Decision) -> None:
        self._frontend_lost(frontend_id, decision)
        self._frontends.add(frontend_id)
        decision.actions.append(AnnounceLimits(frontend_id, self._limits))

    def _frontend_lost(self, frontend_id: str, decision: Decision) -> None:
        self._frontends.discard(frontend_id)
        for record in [record for record in self._requests.values() if record.frontend_id == frontend_id]:
            self._cancel(record, decision)

    def _request_arrived(self, record: RequestRecord, decision: Decision) -> None:
        self._counters["arrived"] += 1
        previous = self._requests.get(record.request_id)
        if previous is not None and previous.frontend_id == record.frontend_id:
            self._cancel(previous, decision)
        if error := self._refusal_on_arrival(record):
            self._counters["failed"] += 1
            decision.deliver_end(record, "error", WireError.of(error))
        else:
            self._requests[record.request_id] = record
            self._enqueue(record, decision)

    def _request_cancelled(self, frontend_id: str, request_id: str, decision: Decision) -> None:
        record = self._requests.get(request_id)
        if record is not None and record.frontend_id == frontend_id:
            self._cancel(record, decision)

    def _runner_lost(self, runner_id: str, decision: Decision) -> None:
        self._runners.discard(runner_id)
        for uuid in [uuid for uuid, gpu in self._gpus.items() if gpu.runner_id == runner_id]:
            self._gpu_lost(uuid, decision)

    def _gpu_lost(self, uuid: str, decision: Decision) -> None:
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return
        for record in list(gpu.working_set.values()):
            self._lose_gpu(record, gpu, decision)
        del self._gpus[uuid]
        self._counters["gpus_lost"] += 1

    def _step_finished(self, report: StepReport, decision: Decision) -> None:
        gpu = self._gpus.get(report.gpu_uuid)
        if gpu is None:
            return
        gpu.account(report)
        # Counters of another incarnation are of assignments that this one knows nothing of.
        if report.incarnation == self._incarnation:
            self._take_tokens(report, gpu, decision)
            self._take_ends(report, gpu, decision)
        self._evict(gpu, bool(report.starved), decision)

    def _take_tokens(self, report: StepReport, gpu: GpuRecord, decision: Decision) -> None:
        """Takes and delivers each token that is its request's next. The hottest loop of the cluster."""
        num_taken = 0
        rows = zip(report.counters, report.positions, report.token_ids, report.logprobs or repeat(None), strict=False)
        for counter, position, token_id, logprobs in rows:
            record = gpu.working_set.get(counter)
            if record is None:
                continue  # its assignment has been stopped: its late tokens are dropped
            if not record.continues_at(position):
                self._break_stream(record, gpu, position, decision)
                continue
            record.generated_ids.append(token_id)
            columns = decision.deliveries[record.frontend_id]
            columns.handles.append(record.handle)
            columns.positions.append(position)
            columns.token_ids.append(token_id)
            if logprobs is not None:
                columns.add_logprobs(logprobs)
            num_taken += 1
        gpu.num_tokens += num_taken
        self._counters["tokens"] += num_taken
        self._trials.note_progress()

    def _take_ends(self, report: StepReport, gpu: GpuRecord, decision: Decision) -> None:
        for counter, reason in report.finished:
            if record := gpu.working_set.get(counter):
                self._detach(record, decision, tell_worker=False)
                self._conclude(record, RequestState.FINISHED)
                decision.deliver_end(record, reason)

    def _break_stream(self, record: RequestRecord, gpu: GpuRecord, position: int, decision: Decision) -> None:
        """The worker and we disagree on where a request is: it starts over from what its client has."""
        expected = len(record.generated_ids)
        error = RequestFailed(f"GPU {gpu.uuid} sent token {position} of it where {expected} had to come")
        self._try_again(record, gpu, WireError.of(error), decision, tell_worker=True)

    def _evict(self, gpu: GpuRecord, is_starved: bool, decision: Decision) -> None:
        """Takes the newest requests off a GPU until the next steps fit: those that came first go on (Punica, 5.3)."""
        # A worker that lacks pages though none are on their way has fewer than the book says: believe the worker.
        while gpu.overflows() or (is_starved and gpu.working_set and not gpu.book.awaits_pages):
            self._evict_one(gpu, gpu.newest, decision)

    def _evict_one(self, gpu: GpuRecord, victim: RequestRecord, decision: Decision) -> None:
        self._counters["evictions"] += 1
        decision.barred[victim.request_id] = gpu.uuid
        self._requeue(victim, decision, tell_worker=True)

    def _assignments_failed(self, failure: AssignmentsFailed, decision: Decision) -> None:
        gpu = self._gpus.get(failure.gpu_uuid)
        if gpu is None:
            return
        for assignment in failure.assignments:
            gpu.book.drop(assignment)
            record = gpu.working_set.get(assignment.counter)
            if record is not None and record.assignment == assignment:
                permanent = failure.permanent
                self._try_again(record, gpu, failure.error, decision, tell_worker=False, is_permanent=permanent)

    def _tick(self, decision: Decision) -> None:
        self._is_settled = self._is_settled or decision.now_ns >= self._settled_ns
        latest_ns = decision.now_ns - self._queue_timeout_ns
        for record in [record for record in self._queue if record.queued_ns <= latest_ns]:
            error = f"no GPU had room for the request for {self._queue_timeout_ns / 1e9:g} s; try again later"
            self._fail(record, WireError.of(OutOfCapacity(error)), decision)

    # -------------------------------------------------------------- what happens to a request

    def _refusal_on_arrival(self, record: RequestRecord) -> PunicaError | None:
        if record.request_id in self._requests:
            return InvalidRequest("another frontend has a request of this id; ids must be unique", param="request_id")
        if error := too_long_to_send(record.request):
            return error
        # A stream that has begun was admitted once; a restart of ours must not break it.
        if len(self._queue) >= self._max_queue and not record.generated_ids:
            return OutOfCapacity(f"{len(self._queue)} requests wait for a GPU already; try again later")
        return refusal(record, self._gpus.values()) if self._is_settled and self._gpus else None

    def _enqueue(self, record: RequestRecord, decision: Decision) -> None:
        if record.is_complete:
            # It has all its tokens but lost the GPU that was to say so.
            self._conclude(record, RequestState.FINISHED)
            decision.deliver_end(record, "length")
        else:
            record.queued_ns = decision.now_ns
            self._queue.add(record)

    def _place_what_waits(self, decision: Decision) -> None:
        if self._is_settled and self._gpus:
            self._begin_trial(decision)
            self._place_from_queue(decision)

    def _begin_trial(self, decision: Decision) -> None:
        """Empties a GPU for the next suspect, and places it there once the pages are back."""
        while suspect := self._trials.next_suspect:
            if error := refusal(suspect, self._gpus.values()):
                self._fail(suspect, WireError.of(error), decision)
                continue
            gpu = self._trials.gpu_apart(self._gpus)
            assert gpu is not None, "what no GPU can run is refused"
            for record in list(gpu.working_set.values()):
                self._evict_one(gpu, record, decision)
            if not decision.allows(suspect, gpu) or not gpu.has_room_for(suspect):
                return
            self._place(suspect, gpu, decision)
            self._trials.begin(suspect)

    def _place_from_queue(self, decision: Decision) -> None:
        """First come, first served: a head that does not fit blocks those behind it."""
        apart = self._trials.gpu_apart(self._gpus)
        while record := self._queue.head:
            if error := refusal(record, self._gpus.values()):
                self._fail(record, WireError.of(error), decision)
                continue
            candidates = [
                gpu
                for gpu in self._gpus.values()
                if gpu is not apart and decision.allows(record, gpu) and gpu.has_room_for(record)
            ]
            if not candidates:
                return
            self._place(record, self._placement(record, candidates), decision)

    def _place(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        record.become(RequestState.PLACED, self.story)
        self._queue.remove(record)
        self._num_assignments += 1
        assignment = AssignmentId(self._incarnation, self._num_assignments)
        self._counters["migrations"] += record.last_gpu_uuid not in (None, gpu.uuid)
        record.assignment = assignment
        record.gpu_uuid = record.last_gpu_uuid = gpu.uuid
        seq = gpu.place(assignment, record)
        decision.actions.append(Start(gpu.uuid, seq, assignment, record.as_it_is()))

    def _requeue(self, record: RequestRecord, decision: Decision, *, tell_worker: bool) -> None:
        """Takes a request off its GPU to be placed as a new one, with what it has generated."""
        record.become(RequestState.QUEUED, self.story)
        self._detach(record, decision, tell_worker=tell_worker)
        self._enqueue(record, decision)

    def _lose_gpu(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        """Takes a request off a lost GPU. Only if its start was acknowledged was it running there, and may be why."""
        assert record.assignment is not None
        record.num_losses += gpu.book.has_applied(record.assignment)
        if record.num_losses > NUM_SUSPICIOUS_LOSSES and not record.is_complete:
            self._fail(record, WireError.of(convicted(record)), decision, tell_worker=False)
        else:
            self._requeue(record, decision, tell_worker=False)

    def _try_again(
        self,
        record: RequestRecord,
        gpu: GpuRecord,
        error: WireError,
        decision: Decision,
        *,
        tell_worker: bool,
        is_permanent: bool = False,
    ) -> None:
        """Places a request elsewhere after a failure that may have been the GPU's, unless it has had its tries."""
        record.num_failures += 1
        if is_permanent or record.num_failures >= MAX_TRIES:
            self._fail(record, error, decision, tell_worker=tell_worker)
        else:
            decision.barred[record.request_id] = gpu.uuid
            self._requeue(record, decision, tell_worker=tell_worker)

    def _cancel(self, record: RequestRecord, decision: Decision) -> None:
        self._detach(record, decision)
        self._conclude(record, RequestState.CANCELLED)

    def _fail(self, record: RequestRecord, error: WireError, decision: Decision, *, tell_worker: bool = True) -> None:
        self._detach(record, decision, tell_worker=tell_worker)
        self._conclude(record, RequestState.FAILED)
        decision.deliver_end(record, "error", error)

    def _detach(self, record: RequestRecord, decision: Decision, *, tell_worker: bool = True) -> None:
        """Takes a request from where it is, its GPU or the queue. A worker that ended it itself needs no telling."""
        if record.assignment is None or record.gpu_uuid is None:
            self._queue.remove(record)
            return
        self._trials.break_off(record)
        gpu = self._gpus[record.gpu_uuid]
        del gpu.working_set[record.assignment.counter]
        if tell_worker:
            decision.actions.append(Stop(gpu.uuid, gpu.book.stop(), record.assignment))
        record.assignment = record.gpu_uuid = None

    def _conclude(self, record: RequestRecord, end: RequestState) -> None:
        record.become(end, self.story)
        del self._requests[record.request_id]
        self._counters[end.value] += 1

    # -------------------------------------------------------------- what frontends should know

    def _announce_new_limits(self, decision: Decision) -> None:
        capacities = [gpu.max_request_tokens for gpu in self._gpus.values()]
        limits = Limits(num_gpus=len(capacities), max_request_tokens=max(capacities, default=None))
        if limits != self._limits:
            self._limits = limits
            decision.actions += [AnnounceLimits(frontend_id, limits) for frontend_id in sorted(self._frontends)]
