"""Who is where, and what can happen to a request: the primitives that all decisions are made of.

Whatever takes a request off a GPU puts it back into the queue at its place by arrival, with what it has generated. So
there is one way to run a request: ``place``.
"""

from collections.abc import Iterable

from punica_scheduler.actions import Start, Stop
from punica_scheduler.adapters import Adapters
from punica_scheduler.decision import Decision
from punica_scheduler.fleet import Fleet
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.marks import Marks
from punica_scheduler.queues import QUEUES
from punica_scheduler.quotas import Quotas
from punica_scheduler.recent import Recent
from punica_scheduler.request import NUM_SUSPICIOUS_LOSSES, RequestRecord, RequestState
from punica_scheduler.settings import SchedulerSettings
from punica_scheduler.trials import Trials, convicted, note_death
from punica_scheduler.waiting import Waiting
from punica_serve.errors import StoreUnavailable
from punica_serve.protocol import AssignmentId, FinishReason, TenantQuota, WireError

#: Assignments of a request that may end in a failure of the GPU's or a broken stream before it fails itself.
MAX_TRIES = 3

COUNTERS = (
    "arrived",
    "finished",
    "cancelled",
    "failed",
    "tokens",
    "evictions",
    "migrations",
    "consolidations",
    "gpus_lost",
)


class Books:
    """All live requests, where they wait or run, and what has happened so far.

    ``incarnation`` is the scheduler's start time, so that no assignment id is ever used twice. ``story`` is what an
    impossible transition is reported with.
    """

    def __init__(self, incarnation: int, settings: SchedulerSettings, story: Iterable[object]) -> None:
        self._incarnation = incarnation
        self._settings = settings
        self._story = story
        self._num_assignments = 0
        self.fleet = Fleet()
        #: By request id.
        self.requests: dict[str, RequestRecord] = {}
        self.adapters = Adapters(self.fleet)
        self.quotas = Quotas()
        self.waiting = Waiting(QUEUES[settings.queue]())
        self.trials = Trials(self.waiting.suspects)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.recent = Recent()
        self.marks = Marks()
        self.marks.add("scheduler_started", None, incarnation)

    # -------------------------------------------------------------- to a GPU

    def admit(self, record: RequestRecord, quota: TenantQuota | None, decision: Decision) -> None:
        """A new request, which nothing speaks against."""
        self.requests[record.request_id] = record
        record.admitted_ns = decision.now_ns
        self.quotas.admit(record, quota, decision.now_ns)
        self.adapters.began(record.digest)
        self._enqueue(record, decision)

    def place(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        """Starts a request that waits."""
        record.become(RequestState.PLACED, self._story)
        self._end_wait(record, decision)
        self.waiting.queue.charge((record,))
        self._num_assignments += 1
        assignment = AssignmentId(self._incarnation, self._num_assignments)
        if record.last_gpu_uuid not in (None, gpu.uuid):
            self.counters["migrations"] += 1
            self.marks.add("migrated", gpu.uuid, decision.now_ns)
        record.assignment = assignment
        record.gpu_uuid = record.last_gpu_uuid = gpu.uuid
        record.num_generated_at_start = record.num_generated
        record.home_uuid = None
        record.is_owed = True
        seq = gpu.add(assignment, record)
        self.fleet.index.update(gpu)
        decision.actions.append(Start(gpu.uuid, seq, assignment, record.as_it_is()))

    def move(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        """Takes a request that needs more tokens from one GPU to another: stop and start, sent back to back."""
        self.requeue(record, decision, tell_worker=True)
        self.place(record, gpu, decision)

    # -------------------------------------------------------------- off a GPU

    def requeue(self, record: RequestRecord, decision: Decision, *, tell_worker: bool) -> None:
        """Takes a request off its GPU to be placed as a new one, with what it has generated."""
        record.become(RequestState.QUEUED, self._story)
        self._detach(record, decision, tell_worker=tell_worker)
        self._enqueue(record, decision)

    def evict(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        """The GPU lacks pages."""
        self.counters["evictions"] += 1
        self.marks.add("evicted", gpu.uuid, decision.now_ns)
        record.num_evictions += 1
        self.make_way(record, gpu, decision)

    def make_way(self, record: RequestRecord, gpu: GpuRecord, decision: Decision) -> None:
        """The GPU is needed for something else: the request goes on elsewhere or later."""
        decision.barred[record.request_id] = gpu.uuid
        may_come_back = not gpu.is_draining and gpu.capacity.could_run(record)
        if not self._settings.migration and may_come_back and not record.is_suspect:
            record.home_uuid = gpu.uuid
        self.requeue(record, decision, tell_worker=True)

    def lose_gpu(self, gpu: GpuRecord, decision: Decision, *, is_death: bool) -> None:
        """A GPU is gone with all that ran there: its worker has died, or its runner or the link to it is lost."""
        for record in list(gpu.working_set.values()):
            self._lose(record, gpu, decision, is_death=is_death)
        self._remove(gpu, decision)
        self.counters["gpus_lost"] += 1
        self.marks.add("gpu_lost", gpu.uuid, decision.now_ns)

    def part_with(self, gpu: GpuRecord, decision: Decision) -> None:
        """A GPU on which nothing is left is gone with its runner, as planned."""
        self._remove(gpu, decision)
        self.marks.add("gpu_left", gpu.uuid, decision.now_ns)

    def _remove(self, gpu: GpuRecord, decision: Decision) -> None:
        self.fleet.remove(gpu)
        decision.has_drained |= gpu.is_draining
        self.waiting.free_homebound(gpu.uuid)

    def _lose(self, record: RequestRecord, gpu: GpuRecord, decision: Decision, *, is_death: bool) -> None:
        """Takes a request off a lost GPU. Only if its start was acknowledged was it running there, and may be why."""
        assert record.assignment is not None
        if is_death and gpu.book.has_applied(record.assignment):
            note_death(record)
        if record.num_losses > NUM_SUSPICIOUS_LOSSES and not record.is_complete:
            self.fail(record, WireError.of(convicted(record)), decision, tell_worker=False)
        else:
            self.requeue(record, decision, tell_worker=False)

    def try_again(
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
            self.fail(record, error, decision, tell_worker=tell_worker)
        else:
            decision.barred[record.request_id] = gpu.uuid
            if error.code == StoreUnavailable.code and self._may_wait_aside(record, gpu):
                record.aside_until_ns = decision.now_ns + self._settings.store_patience_ns
            self.requeue(record, decision, tell_worker=tell_worker)

    def _may_wait_aside(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Before its last try, if the adapter has not come there meanwhile, and not too many do so already."""
        is_last = record.num_failures == MAX_TRIES - 1
        has_place = not record.is_suspect and len(self.waiting.aside) < self._settings.max_queue
        return is_last and has_place and not (record.digest and self.adapters.is_near(record.digest, gpu))

    # -------------------------------------------------------------- out of the books

    def finish(self, record: RequestRecord, reason: FinishReason, decision: Decision) -> None:
        """Its worker says that it has all its tokens."""
        self._detach(record, decision, tell_worker=False)
        self._conclude(record, RequestState.FINISHED)
        decision.deliver_end(record, reason)

    def cancel(self, record: RequestRecord, decision: Decision) -> None:
        self._detach(record, decision, tell_worker=True)
        self._conclude(record, RequestState.CANCELLED)

    def fail(self, record: RequestRecord, error: WireError, decision: Decision, *, tell_worker: bool = True) -> None:
        self._detach(record, decision, tell_worker=tell_worker)
        self._conclude(record, RequestState.FAILED)
        decision.deliver_end(record, "error", error)

    # -------------------------------------------------------------- the parts of these

    def _enqueue(self, record: RequestRecord, decision: Decision) -> None:
        if record.is_complete:
            # It has all its tokens but lost the GPU that was to say so.
            self._conclude(record, RequestState.FINISHED)
            decision.deliver_end(record, "length")
        else:
            record.queued_ns = decision.now_ns
            self.waiting.add(record)

    def _end_wait(self, record: RequestRecord, decision: Decision) -> None:
        self.waiting.remove(record)
        record.count_wait(decision.now_ns)

    def _detach(self, record: RequestRecord, decision: Decision, *, tell_worker: bool) -> None:
        """Takes a request from where it is, its GPU or the queue. A worker that ended it itself needs no telling."""
        if record.assignment is None or record.gpu_uuid is None:
            self._end_wait(record, decision)
            if record.home_uuid is not None:
                self.fleet.index.touch(self.fleet.gpus[record.home_uuid])  # it may be anyone's now
            return
        self.trials.break_off(record)
        self.waiting.queue.charge((record,))
        gpu = self.fleet.gpus[record.gpu_uuid]
        gpu.remove(record.assignment, decision.now_ns)
        if tell_worker:
            decision.actions.append(Stop(gpu.uuid, gpu.book.stop(), record.assignment))
        self.fleet.index.update(gpu)
        decision.has_drained |= gpu.is_draining
        record.assignment = record.gpu_uuid = None

    def _conclude(self, record: RequestRecord, end: RequestState) -> None:
        record.become(end, self._story)
        del self.requests[record.request_id]
        self.quotas.release(record)
        self.adapters.ended(record.digest)
        self.counters[end.value] += 1
