"""What is looked at by the clock, again and again: who has waited too long, which GPU to empty, how many to have."""

from punica_scheduler import consolidation
from punica_scheduler.actions import Advise
from punica_scheduler.advice import ScaleAdvisor
from punica_scheduler.books import Books
from punica_scheduler.decision import Decision
from punica_scheduler.settings import SchedulerSettings
from punica_serve.errors import OutOfCapacity
from punica_serve.protocol import ScaleAdvice, WireError


class Periodic:
    """One method for each; a tick calls them."""

    def __init__(self, books: Books, settings: SchedulerSettings) -> None:
        self._books = books
        self._settings = settings
        self._advisor = ScaleAdvisor(settings.scale)
        self._next_consolidation_ns = 0

    @property
    def latest_advice(self) -> ScaleAdvice:
        return self._advisor.advice

    def let_minutes_pass(self, decision: Decision) -> None:
        self._books.quotas.let_pass(decision.now_ns)

    def end_waits(self, decision: Decision) -> None:
        """A request that waits aside is tried a last time; the others have waited in vain."""
        timeout_ns = self._settings.queue_timeout_ns
        self._books.waiting.call_back(lambda record: (record.aside_until_ns or 0) <= decision.now_ns, decision.now_ns)
        for record in [record for record in self._books.waiting if record.queued_ns <= decision.now_ns - timeout_ns]:
            error = f"no GPU had room for the request for {timeout_ns / 1e9:g} s; try again later"
            self._books.fail(record, WireError.of(OutOfCapacity(error)), decision)

    def consolidate(self, decision: Decision) -> None:
        rule = self._settings.consolidation
        if rule is None or decision.now_ns < self._next_consolidation_ns:
            return
        self._next_consolidation_ns = decision.now_ns + rule.interval_ns
        if self._books.waiting.num_for_gpu or not self._books.trials.is_idle:
            return
        moves = consolidation.plan(self._books.fleet.gpus.values(), self._books.fleet.index, rule)
        if not moves:
            return
        emptied_uuid = moves[0][0].gpu_uuid
        assert emptied_uuid is not None
        self._books.counters["consolidations"] += 1
        self._books.marks.add("consolidated", emptied_uuid, decision.now_ns)
        for record, gpu in moves:
            record.was_consolidated = True
            self._books.move(record, gpu, decision)

    def advise(self, decision: Decision) -> None:
        before = self._advisor.advice
        advice = self._advisor.look(self._books.fleet.gpus.values(), self._books.waiting.num_for_gpu, decision.now_ns)
        if advice != before:
            decision.actions.append(Advise(advice))
