"""The state of all live requests and GPUs, and the transitions that every outcome is made of.

A request that leaves a GPU returns to the queue at its position by arrival, with the tokens it has generated. So there
is one way to run a request: ``place``.
"""

from collections.abc import Iterable

from punica_scheduler.core.actions import Start, Stop
from punica_scheduler.core.adapters import Adapters
from punica_scheduler.core.fleet import Fleet
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.prefetch_hints import PrefetchHints
from punica_scheduler.core.quarantine import PoisonQuarantine, poisoned, record_death
from punica_scheduler.core.queues import QUEUES
from punica_scheduler.core.quotas import Quotas
from punica_scheduler.core.request import NUM_SUSPICIOUS_LOSSES, RequestRecord
from punica_scheduler.core.request_state import RequestState, WaitReason
from punica_scheduler.core.settings import SchedulerSettings
from punica_scheduler.core.waiting import Waiting
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


class ClusterState:
    """All live requests, where they wait or run, and what has happened so far.

    ``incarnation`` is the scheduler's start time, so that no assignment id is ever used twice. ``event_log`` is what an
    impossible transition is reported with.
    """

    def __init__(self, incarnation: int, settings: SchedulerSettings, event_log: Iterable[object]) -> None:
        self._incarnation = incarnation
        self._settings = settings
        self._event_log = event_log
        self._num_assignments = 0
        #: All have had the time to come back after a restart. Until then nothing is placed.
        self.is_settled = settings.settle_ns == 0
        self.fleet = Fleet(settings.prefill_budget)
        #: By request id.
        self.requests: dict[str, RequestRecord] = {}
        self.adapters = Adapters(self.fleet)
        self.quotas = Quotas()
        self.waiting = Waiting(QUEUES[settings.queue](settings.queue_timeout_ns))
        self.hints = PrefetchHints(self.fleet, settings.placement)
        self.quarantine = PoisonQuarantine(self.waiting.suspects)
        self.counters = dict.fromkeys(COUNTERS, 0)

    # -------------------------------------------------------------- to a GPU

    def admit(self, record: RequestRecord, quota: TenantQuota | None, outcome: Outcome) -> None:
        """Adds a new request that passed admission."""
        self.requests[record.request_id] = record
        record.admit(outcome.now_ns, self.fleet.index.typical.num_answer)
        self.quotas.admit(record, quota, outcome.now_ns)
        self.adapters.began(record.digest)
        self._enqueue(record, outcome)

    def place(self, record: RequestRecord, gpu: GpuRecord, outcome: Outcome) -> None:
        """Starts a request that waits."""
        record.become(RequestState.PLACED, self._event_log)
        self.waiting.remove(record, outcome.now_ns)
        self.hints.left_queue(record)
        self.waiting.queue.charge((record,))
        self._num_assignments += 1
        assignment = AssignmentId(self._incarnation, self._num_assignments)
        if record.last_gpu_uuid not in (None, gpu.uuid):
            self.counters["migrations"] += 1
            outcome.record_event("migrated", gpu.uuid)
        record.begin_assignment(assignment, gpu.uuid, outcome.now_ns)
        seq = gpu.add(assignment, record)
        self.fleet.index.update(gpu, record.digest)
        outcome.actions.append(Start(gpu.uuid, seq, assignment, record.as_it_is()))

    def move(self, record: RequestRecord, gpu: GpuRecord, outcome: Outcome) -> None:
        """Takes a request that needs more tokens from one GPU to another: stop and start, sent back to back."""
        self.requeue(record, outcome, tell_worker=True)
        self.place(record, gpu, outcome)

    # -------------------------------------------------------------- off a GPU

    def requeue(
        self,
        record: RequestRecord,
        outcome: Outcome,
        *,
        tell_worker: bool,
        reason: WaitReason = WaitReason.PLACEMENT,
    ) -> None:
        """Takes a request off its GPU to be placed as a new one, with what it has generated."""
        record.become(RequestState.QUEUED, self._event_log)
        self._detach(record, outcome, tell_worker=tell_worker)
        self._enqueue(record, outcome, reason)

    def preempt_for_pages(self, record: RequestRecord, gpu: GpuRecord, outcome: Outcome) -> None:
        """Takes a request off a GPU that lacks pages. Punica calls this eviction (section 5.3)."""
        self.counters["evictions"] += 1
        outcome.record_event("evicted", gpu.uuid)
        record.count_preemption()
        self.preempt(record, gpu, outcome)

    def preempt(self, record: RequestRecord, gpu: GpuRecord, outcome: Outcome) -> None:
        """Takes a request off a GPU for the sake of others. It goes on elsewhere or later."""
        outcome.barred[record.request_id] = gpu.uuid
        may_come_back = not gpu.is_draining and gpu.capacity.could_run(record)
        reason = WaitReason.PLACEMENT
        if not self._settings.migration and may_come_back and not record.is_suspect:
            reason = WaitReason.PINNED_GPU
            record.pin(gpu.uuid)
        self.requeue(record, outcome, tell_worker=True, reason=reason)

    def lose_gpu(self, gpu: GpuRecord, outcome: Outcome, *, is_death: bool) -> None:
        """Removes a GPU whose worker died, or whose runner or link was lost. Its requests are queued again."""
        for record in list(gpu.working_set.values()):
            self._lose(record, gpu, outcome, is_death=is_death)
        self._remove(gpu, outcome)
        self.counters["gpus_lost"] += 1
        outcome.record_event("gpu_lost", gpu.uuid)

    def remove_drained_gpu(self, gpu: GpuRecord, outcome: Outcome) -> None:
        """Removes an empty GPU that left with its draining runner. It is not counted as lost."""
        self._remove(gpu, outcome)
        outcome.record_event("gpu_left", gpu.uuid)

    def _remove(self, gpu: GpuRecord, outcome: Outcome) -> None:
        self.fleet.remove(gpu)
        self.hints.lost(gpu)
        outcome.has_drained |= gpu.is_draining
        self.waiting.release_pinned(gpu.uuid)

    def _lose(self, record: RequestRecord, gpu: GpuRecord, outcome: Outcome, *, is_death: bool) -> None:
        """Takes a request off a lost GPU. It may be the cause only if its start was acknowledged."""
        assert record.assignment is not None
        if is_death and gpu.kv_pages.has_applied(record.assignment):
            record_death(record)
        if record.num_losses > NUM_SUSPICIOUS_LOSSES and not record.is_complete:
            self.fail(record, WireError.of(poisoned(record)), outcome, tell_worker=False)
        else:
            self.requeue(record, outcome, tell_worker=False)

    def try_again(
        self,
        record: RequestRecord,
        gpu: GpuRecord,
        error: WireError,
        outcome: Outcome,
        *,
        tell_worker: bool,
        is_permanent: bool = False,
    ) -> None:
        """Queues a request again after a failure that may be the GPU's, up to MAX_TRIES assignments."""
        record.count_failure()
        if is_permanent or record.num_failures >= MAX_TRIES:
            self.fail(record, error, outcome, tell_worker=tell_worker)
        else:
            outcome.barred[record.request_id] = gpu.uuid
            reason = WaitReason.PLACEMENT
            if error.code == StoreUnavailable.code and self._may_await_adapter(record, gpu):
                reason = WaitReason.ADAPTER
                record.retry_adapter_at(outcome.now_ns + self._settings.store_patience_ns)
            self.requeue(record, outcome, tell_worker=tell_worker, reason=reason)

    def _may_await_adapter(self, record: RequestRecord, gpu: GpuRecord) -> bool:
        """Before its last try, unless its adapter has arrived meanwhile or too many requests wait so."""
        is_last = record.num_failures == MAX_TRIES - 1
        has_place = not record.is_suspect and len(self.waiting.awaiting_adapter) < self._settings.max_queue
        return is_last and has_place and not (record.digest and self.adapters.is_near(record.digest, gpu))

    # -------------------------------------------------------------- ends

    def finish(self, record: RequestRecord, reason: FinishReason, outcome: Outcome) -> None:
        """Ends a request whose worker reports it as finished."""
        self._detach(record, outcome, tell_worker=False)
        self._conclude(record, RequestState.FINISHED)
        self.fleet.index.typical.finished(record.num_prompt, record.num_generated)
        outcome.deliver_end(record, reason)

    def cancel(self, record: RequestRecord, outcome: Outcome) -> None:
        self._detach(record, outcome, tell_worker=True)
        self._conclude(record, RequestState.CANCELLED)

    def fail(self, record: RequestRecord, error: WireError, outcome: Outcome, *, tell_worker: bool = True) -> None:
        self._detach(record, outcome, tell_worker=tell_worker)
        self._conclude(record, RequestState.FAILED)
        outcome.deliver_end(record, "error", error)

    # -------------------------------------------------------------- steps of the transitions

    def _enqueue(self, record: RequestRecord, outcome: Outcome, reason: WaitReason = WaitReason.PLACEMENT) -> None:
        if record.is_complete:
            # It has all its tokens but lost the GPU that was to say so.
            self._conclude(record, RequestState.FINISHED)
            outcome.deliver_end(record, "length")
        else:
            self.waiting.add(record, WaitReason.QUARANTINE if record.is_suspect else reason, outcome.now_ns)
            self.hints.queued(record)

    def _detach(self, record: RequestRecord, outcome: Outcome, *, tell_worker: bool) -> None:
        """Takes a request off its GPU or out of the queue. ``tell_worker`` unless the worker ended it itself."""
        if record.assignment is None or record.gpu_uuid is None:
            if record.pinned_gpu_uuid is not None:
                self.fleet.index.touch(self.fleet.gpus[record.pinned_gpu_uuid])  # others may have its place
            self.waiting.remove(record, outcome.now_ns)
            self.hints.left_queue(record)
            return
        self.quarantine.abort(record)
        self.waiting.queue.charge((record,))
        gpu = self.fleet.gpus[record.gpu_uuid]
        gpu.remove(record.assignment, outcome.now_ns)
        if tell_worker:
            outcome.actions.append(Stop(gpu.uuid, gpu.kv_pages.stop(), record.assignment))
        self.fleet.index.update(gpu, record.digest)
        outcome.has_drained |= gpu.is_draining
        record.end_assignment()

    def _conclude(self, record: RequestRecord, end: RequestState) -> None:
        record.become(end, self._event_log)
        del self.requests[record.request_id]
        self.quotas.release(record)
        self.adapters.ended(record.digest)
        self.counters[end.value] += 1
