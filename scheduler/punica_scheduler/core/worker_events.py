"""Events from workers: steps that ended, and requests that could not run."""

from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.request import RequestRecord
from punica_scheduler.core.step_reports import apply_step_report
from punica_serve.errors import RequestFailed
from punica_serve.protocol import AssignmentsFailed, StepReport, WireError


class WorkerEvents:
    """One method for each event. ``incarnation`` is the scheduler's start time."""

    def __init__(self, state: ClusterState, incarnation: int) -> None:
        self._state = state
        self._fleet = state.fleet
        self._incarnation = incarnation

    def step_finished(self, report: StepReport, outcome: Outcome) -> None:
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

    def assignments_failed(self, failure: AssignmentsFailed, outcome: Outcome) -> None:
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
