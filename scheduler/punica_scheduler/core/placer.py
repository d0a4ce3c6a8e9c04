"""Places waiting requests; every event ends here.

The queue's head goes where the placement policy says. If no GPU has room, it goes where a place becomes free first, or
blocks the requests behind it. A blocked head is tried again only on GPUs that have gained room since, so a step that
frees nothing costs nothing here.
"""

from collections.abc import Collection
from itertools import chain
from operator import attrgetter

from punica_scheduler.core.admission import could_go_on, refusal
from punica_scheduler.core.cluster_state import ClusterState
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.outcome import Outcome
from punica_scheduler.core.placement import Placement
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require
from punica_serve.protocol import WireError

_by_arrival = attrgetter("arrival")


class Placer:
    """Places waiting requests by one policy."""

    def __init__(self, state: ClusterState, placement: Placement) -> None:
        self._state = state
        self._fleet = state.fleet
        self._waiting = state.waiting
        self._placement = placement
        #: The head that no GPU had room for, but those that have improved since may.
        self._blocked: RequestRecord | None = None
        #: The fleet for which requests awaiting a larger GPU were last checked.
        self._fleet_version = self._fleet.version
        #: The GPU that is reserved for a suspect.
        self._reserved: GpuRecord | None = None

    def place_what_waits(self, outcome: Outcome) -> None:
        """Called last for each event."""
        if not self._waiting or not self._fleet.gpus:
            return
        self._sort_out_too_large()
        if self._reserved is not None or not self._state.quarantine.is_idle:
            self._start_suspect(outcome)
            self._reserve_gpu()
        improved = self._fleet.index.take_improved()
        if self._waiting.pinned:
            self._place_pinned(improved, outcome)
        self._place_from_queue(improved, outcome)
        # The next event may return what this one preempted.
        if outcome.barred:
            self._fleet.index.improved |= {self._fleet.gpus[uuid] for uuid in outcome.barred.values()}

    def empty_draining(self, outcome: Outcome) -> None:
        """Moves the requests of draining GPUs to where there is room, but none past an older one that waits."""
        gpus = self._fleet.draining
        if not self._state.is_settled or not gpus:
            return
        for gpu in gpus:
            self._waiting.release_pinned(gpu.uuid)
            self._state.hints.lost(gpu)
        self._sort_out_too_large()  # the GPU is reserved for the first suspect that could run
        self._reserve_gpu()
        head = self._waiting.queue.head
        for record in sorted((record for gpu in gpus for record in gpu.working_set.values()), key=_by_arrival):
            if head is not None and head.arrival < record.arrival:
                return
            if record.is_suspect or record.is_complete:
                continue  # a suspect stays until it is cleared; a complete request is about to end
            if target := self._target_of(record, outcome):
                self._state.move(record, target, outcome)

    # -------------------------------------------------------------- queues

    def _sort_out_too_large(self) -> None:
        """Moves requests between the queues and the one for a larger GPU, after a change of the fleet.

        Suspects that no GPU could run move here; others when they become the queue's head.
        """
        if self._fleet_version != self._fleet.version:
            self._fleet_version = self._fleet.version
            self._waiting.retry_larger(lambda record: could_go_on(record, self._fleet))
        while (suspect := self._state.quarantine.next_suspect) and not could_go_on(suspect, self._fleet):
            self._waiting.await_larger_gpu(suspect)

    def _start_suspect(self, outcome: Outcome) -> None:
        """Empties a GPU for the next suspect, and places it there once the pages are free."""
        quarantine = self._state.quarantine
        suspect, gpu = quarantine.next_suspect, quarantine.reserved_gpu(self._fleet.gpus)
        if suspect is None or gpu is None:
            return
        for record in list(gpu.working_set.values()):
            self._state.preempt(record, gpu, outcome)
        if outcome.allows(suspect, gpu) and gpu.has_room_for(suspect):
            self._state.place(suspect, gpu, outcome)
            quarantine.begin(suspect)

    def _reserve_gpu(self) -> None:
        apart = self._state.quarantine.reserved_gpu(self._fleet.gpus)
        if apart is not self._reserved and self._reserved is not None:
            self._fleet.index.touch(self._reserved)
        self._reserved = apart

    def _place_pinned(self, improved: Collection[GpuRecord], outcome: Outcome) -> None:
        """Without migration: on their GPU, pinned requests go before the queue."""
        for gpu in sorted(improved, key=attrgetter("uuid")):
            while queue := self._waiting.pinned.get(gpu.uuid):
                record = queue.head
                if record is None or gpu is self._reserved or not self._has_room(gpu, record, outcome):
                    break
                self._state.place(record, gpu, outcome)

    def _place_from_queue(self, improved: Collection[GpuRecord], outcome: Outcome) -> None:
        """Places from the head until one does not fit, which blocks the rest."""
        while record := self._waiting.queue.head:
            if record.was_admitted:
                if not could_go_on(record, self._fleet):
                    self._waiting.await_larger_gpu(record)
                    continue
            elif error := refusal(record, self._fleet):
                self._state.fail(record, WireError.of(error), outcome)
                continue
            if record is self._blocked and not any(self._takes(gpu, record, outcome) for gpu in improved):
                return
            target = self._target_of(record, outcome)
            if target is None:
                self._blocked = record
                return
            self._blocked = None
            self._state.place(record, target, outcome)

    # -------------------------------------------------------------- questions

    def _target_of(self, record: RequestRecord, outcome: Outcome) -> GpuRecord | None:
        index = self._fleet.index
        free = (gpu for gpu in self._placement.candidates(record, index) if gpu.has_free_place)
        soon = index.soonest_first(record)
        gpus = (gpu for gpu in chain(free, soon) if self._takes(gpu, record, outcome))
        digest, adapters = record.digest, self._state.adapters
        if record.num_failures and digest is not None:  # the store may be what fails: prefer hosts with the adapter
            return min(gpus, key=lambda gpu: not adapters.is_near(digest, gpu), default=None)
        return next(gpus, None)

    def _takes(self, gpu: GpuRecord, record: RequestRecord, outcome: Outcome) -> bool:
        return (
            self._has_room(gpu, record, outcome) and gpu is not self._reserved and gpu.uuid not in self._waiting.pinned
        )

    @staticmethod
    def _has_room(gpu: GpuRecord, record: RequestRecord, outcome: Outcome) -> bool:
        return gpu.has_room_for(record) and not gpu.is_draining and outcome.allows(record, gpu)

    def check_invariants(self) -> None:
        """No GPU has room for a blocked head, unless it has gained room since. AssertionError is a bug of ours."""
        head = self._waiting.queue.head
        if head is None or head is not self._blocked:
            return
        outcome = Outcome(0)
        for gpu in self._fleet.gpus.values():
            may_take = gpu not in self._fleet.index.improved and gpu is not self._reserved
            require(not (may_take and self._takes(gpu, head, outcome)), f"{gpu.uuid} has room for the blocked head")
