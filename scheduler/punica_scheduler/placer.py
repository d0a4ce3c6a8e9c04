"""Who is placed where: every event ends here.

The queue's head goes where the placement policy says, or blocks those behind it. A head that was blocked is tried again
only on GPUs that have improved since: a step that frees nothing costs nothing here.
"""

from collections.abc import Collection
from operator import attrgetter

from punica_scheduler.admission import could_go_on, refusal
from punica_scheduler.books import Books
from punica_scheduler.decision import Decision
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.placement import Placement
from punica_scheduler.request import RequestRecord
from punica_serve.protocol import WireError

_by_arrival = attrgetter("arrival")


class Placer:
    """Places what waits, by one policy."""

    def __init__(self, books: Books, placement: Placement) -> None:
        self._books = books
        self._fleet = books.fleet
        self._waiting = books.waiting
        self._placement = placement
        #: The head that no GPU had room for, but those that have improved since may.
        self._blocked: RequestRecord | None = None
        #: Of the fleet that has been asked to hold those who wait for a larger GPU.
        self._fleet_version = self._fleet.version
        #: The GPU that is kept for a trial.
        self._apart: GpuRecord | None = None

    def place_what_waits(self, decision: Decision) -> None:
        """After everything else that an event leads to."""
        if not self._waiting or not self._fleet.gpus:
            return
        self._sort_out_outsize()
        if self._apart is not None or not self._books.trials.is_idle:
            self._begin_trial(decision)
            self._keep_apart()
        improved = self._fleet.index.take_improved()
        if self._waiting.homebound:
            self._place_homebound(improved, decision)
        self._place_from_queue(improved, decision)
        # What this decision may not put back, the next may.
        if decision.barred:
            self._fleet.index.improved |= {self._fleet.gpus[uuid] for uuid in decision.barred.values()}

    def move_away(self, gpus: Collection[GpuRecord], decision: Decision) -> None:
        """Moves the requests of draining GPUs to where there is room, but none past an older one that waits."""
        self._sort_out_outsize()  # it is the next suspect that could run whom a GPU is kept for
        self._keep_apart()
        head = self._waiting.queue.head
        for record in sorted((record for gpu in gpus for record in gpu.working_set.values()), key=_by_arrival):
            if head is not None and head.arrival < record.arrival:
                return
            if record.is_suspect or record.is_complete:
                continue  # on trial until it is acquitted; about to end
            if target := self._target_of(record, decision):
                self._books.move(record, target, decision)

    # -------------------------------------------------------------- three lines

    def _sort_out_outsize(self) -> None:
        """Frees those whom the fleet, if it has changed, could hold now; suspects whom it could not wait with the rest.

        Others are found out when they are the queue's head.
        """
        if self._fleet_version != self._fleet.version:
            self._fleet_version = self._fleet.version
            self._waiting.free_outsize(lambda record: could_go_on(record, self._fleet))
        while (suspect := self._books.trials.next_suspect) and not could_go_on(suspect, self._fleet):
            self._waiting.await_larger(suspect)

    def _begin_trial(self, decision: Decision) -> None:
        """Empties a GPU for the next suspect, and places it there once the pages are back."""
        trials = self._books.trials
        suspect, gpu = trials.next_suspect, trials.gpu_apart(self._fleet.gpus)
        if suspect is None or gpu is None:
            return
        for record in list(gpu.working_set.values()):
            self._books.make_way(record, gpu, decision)
        if decision.allows(suspect, gpu) and gpu.has_room_for(suspect):
            self._books.place(suspect, gpu, decision)
            trials.begin(suspect)

    def _keep_apart(self) -> None:
        apart = self._books.trials.gpu_apart(self._fleet.gpus)
        if apart is not self._apart and self._apart is not None:
            self._fleet.index.touch(self._apart)
        self._apart = apart

    def _place_homebound(self, improved: Collection[GpuRecord], decision: Decision) -> None:
        """Without migration: those that wait for one GPU go before the queue there."""
        for gpu in sorted(improved, key=attrgetter("uuid")):
            while line := self._waiting.homebound.get(gpu.uuid):
                record = line.head
                if record is None or gpu is self._apart or not self._has_room(gpu, record, decision):
                    break
                self._books.place(record, gpu, decision)

    def _place_from_queue(self, improved: Collection[GpuRecord], decision: Decision) -> None:
        """A head that does not fit blocks those behind it."""
        while record := self._waiting.queue.head:
            if record.is_owed:
                if not could_go_on(record, self._fleet):
                    self._waiting.await_larger(record)
                    continue
            elif error := refusal(record, self._fleet):
                self._books.fail(record, WireError.of(error), decision)
                continue
            if record is self._blocked and not any(self._takes(gpu, record, decision) for gpu in improved):
                return
            target = self._target_of(record, decision)
            if target is None:
                self._blocked = record
                return
            self._blocked = None
            self._books.place(record, target, decision)

    # -------------------------------------------------------------- questions

    def _target_of(self, record: RequestRecord, decision: Decision) -> GpuRecord | None:
        gpus = (gpu for gpu in self._placement(record, self._fleet.index) if self._takes(gpu, record, decision))
        digest, adapters = record.digest, self._books.adapters
        if record.num_failures and digest is not None:  # not where the store would have to give it once more
            return min(gpus, key=lambda gpu: not adapters.is_near(digest, gpu), default=None)
        return next(gpus, None)

    def _takes(self, gpu: GpuRecord, record: RequestRecord, decision: Decision) -> bool:
        return (
            self._has_room(gpu, record, decision) and gpu is not self._apart and gpu.uuid not in self._waiting.homebound
        )

    @staticmethod
    def _has_room(gpu: GpuRecord, record: RequestRecord, decision: Decision) -> bool:
        return gpu.has_room_for(record) and not gpu.is_draining and decision.allows(record, gpu)

    def check_invariants(self) -> None:
        """A blocked head must have nowhere to go but to what has improved since. AssertionError is a bug of ours."""
        head = self._waiting.queue.head
        if head is None or head is not self._blocked:
            return
        decision = Decision(0)
        for gpu in self._fleet.gpus.values():
            may_take = gpu not in self._fleet.index.improved and gpu is not self._apart
            assert not (may_take and self._takes(gpu, head, decision)), f"{gpu.uuid} has room for the blocked head"
