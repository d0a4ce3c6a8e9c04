"""Work that is due by the clock: queue timeouts, consolidation, scale advice."""

from punica_scheduler.core import consolidation
from punica_scheduler.core.actions import Advise
from punica_scheduler.core.advice import ScaleAdvisor
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.settings import SchedulerSettings
from punica_serve.errors import OutOfCapacity
from punica_serve.protocol import ScaleAdvice, WireError


class Periodic:
    """Called at each tick."""

    def __init__(self, state: ClusterState, settings: SchedulerSettings) -> None:
        self._state = state
        self._settings = settings
        self._advisor = ScaleAdvisor(settings.scale)
        self._next_consolidation_ns = 0

    @property
    def latest_advice(self) -> ScaleAdvice:
        return self._advisor.advice

    def advance_quotas(self, outcome: Outcome) -> None:
        self._state.quotas.advance(outcome.now_ns)

    def end_waits(self, outcome: Outcome) -> None:
        """Tries requests that await their adapter a last time, and fails those that have waited for a GPU too long."""
        timeout_ns = self._settings.queue_timeout_ns
        self._state.waiting.retry_adapters(lambda record: record.retry_at_ns <= outcome.now_ns, outcome.now_ns)
        for record in [record for record in self._state.waiting if record.queued_ns <= outcome.now_ns - timeout_ns]:
            error = f"no GPU had room for the request for {timeout_ns / 1e9:g} s; try again later"
            self._state.fail(record, WireError.of(OutOfCapacity(error)), outcome)

    def consolidate(self, outcome: Outcome) -> None:
        rule = self._settings.consolidation
        if rule is None or outcome.now_ns < self._next_consolidation_ns:
            return
        self._next_consolidation_ns = outcome.now_ns + rule.interval_ns
        if self._state.waiting.num_for_gpu or not self._state.quarantine.is_idle:
            return
        fleet = self._state.fleet
        moves = consolidation.plan(fleet.gpus.values(), fleet.index, rule, self._settings.placement)
        if not moves:
            return
        emptied_uuid = moves[0][0].gpu_uuid
        assert emptied_uuid is not None
        self._state.counters["consolidations"] += 1
        outcome.record_event("consolidated", emptied_uuid)
        for record, gpu in moves:
            record.consolidate()
            self._state.move(record, gpu, outcome)

    def advise(self, outcome: Outcome) -> None:
        before = self._advisor.advice
        fleet, placement = self._state.fleet, self._settings.placement
        advice = self._advisor.look(
            fleet.gpus.values(),
            self._state.waiting.num_for_gpu,
            outcome.now_ns,
            keeps_promises=lambda gpu: placement.keeps_promises(gpu, (), fleet.index),
        )
        if advice != before:
            outcome.actions.append(Advise(advice))
