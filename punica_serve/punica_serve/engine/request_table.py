"""The requests of an engine: which ones wait, which ones run with which adapter, and which ones are preempted."""

from collections import Counter

from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.loader import AdapterLoader
from punica_serve.engine.batching.sequence import Sequence
from punica_serve.engine.batching.step_plan import PrefillChunk, StepPlan
from punica_serve.engine.batching.step_planner import StepPlanner
from punica_serve.engine.cold_starts import ColdStarts
from punica_serve.engine.step_output import Failure
from punica_serve.errors.invariants import require

#: Waiting requests whose adapters are prefetched.
_NUM_PREFETCHED = 32


class RequestTable:
    """Sequences by request id. The planner holds their pages; the loader counts a reference for each that runs."""

    def __init__(self, planner: StepPlanner, loader: AdapterLoader, cold_starts: ColdStarts) -> None:
        self._planner = planner
        self._loader = loader
        self._adapters = loader.adapters
        self._cold_starts = cold_starts
        self._sequences: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def has(self, sequence: Sequence) -> bool:
        """Whether this very sequence is here: its request may have been cancelled and added again, as another one."""
        return self._sequences.get(sequence.request_id) is sequence

    @property
    def has_running(self) -> bool:
        return bool(self._planner.running)

    @property
    def has_room(self) -> bool:
        """Whether a request that arrived now would be prefilled in the next step."""
        return self._planner.has_room

    @property
    def has_runnable(self) -> bool:
        """Whether a step planned now would run anything: not while all await adapters, or one outgrew the KvCache."""
        if self._planner.running:
            return self._planner.has_runnable(self._is_ready, lambda sequence, _: self._cold_starts.can_start(sequence))
        return any(
            self._planner.could_hold(sequence)
            and (sequence.adapter is None or self._adapters.has_room_for(sequence.adapter))
            for sequence in self._planner.next_waiting(1)
        )

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.request_id] = sequence
        self._planner.add(sequence)

    def admit(self) -> None:
        """Admits waiting requests in order. One whose adapter has no room beside those in use blocks the others."""
        while sequence := self._planner.next_admissible():
            if sequence.adapter is not None:
                if not self._adapters.has_room_for(sequence.adapter):
                    return
                self._loader.acquire(sequence.adapter)
            self._planner.admit(sequence)

    def prefetch_to_host(self) -> None:
        """Prefetches the adapters of the next requests to host memory, as far as there are threads to spare."""
        for sequence in self._planner.next_waiting(_NUM_PREFETCHED):
            if sequence.adapter is not None:
                self._loader.prefetch_to_host(sequence.adapter)

    def plan(self, step: StepForecast) -> tuple[StepPlan | None, tuple[str, ...]]:
        """The next step, and the requests preempted for it, whose adapters can be evicted."""
        plan, preempted = self._planner.plan(
            self._is_ready, lambda sequence, num_decodes: self._cold_starts.may_start(sequence, num_decodes, step)
        )
        for sequence in preempted:
            self._release_adapter(sequence)
        return plan, tuple(sequence.request_id for sequence in preempted)

    def drop_failed_loads(self) -> tuple[Failure, ...]:
        """Requests whose adapters failed are dropped before the step; the others never notice."""
        failures = []
        for failure in self._loader.poll():
            lost = tuple(s.request_id for s in self._planner.running if s.digest == failure.digest)
            for request_id in lost:
                self.drop(request_id)
            failures.append(Failure(lost, failure.permanent, failure.error))
        return tuple(failures)

    def settle(self, chunk: PrefillChunk, *, is_good: bool) -> None:
        """A step has ended in which CPU processes were to help a prefill: its results count, or it runs again.

        In that case it waits for all of its adapter.
        """
        sequence = chunk.sequence
        sequence.is_unsure = False
        if not is_good:
            sequence.restart(chunk.start)
            if sequence.digest is not None:
                self._loader.arrivals.stop_joining(sequence.digest)

    def drop(self, request_id: str, *, keep_pages: bool = True) -> None:
        """Drops a request and frees its pages at once. ``keep_pages``: other requests may find what is in them."""
        sequence = self._sequences.pop(request_id)
        if sequence.pages:
            self._release_adapter(sequence)
        self._planner.remove(sequence, keep_pages=keep_pages)

    def check_invariants(self) -> None:
        self._planner.check_invariants()
        self._adapters.check_invariants()
        known = {id(sequence) for sequence in (*self._planner.waiting, *self._planner.running)}
        require(known == {id(sequence) for sequence in self._sequences.values()}, "a sequence is lost or unknown")
        in_use = Counter(sequence.digest for sequence in self._planner.running if sequence.digest is not None)
        require(
            self._adapters.refcounts == in_use, "the reference counts of adapters differ from the requests that run"
        )

    def _is_ready(self, sequence: Sequence) -> bool:
        return not sequence.is_unsure and (sequence.digest is None or self._adapters.is_ready(sequence.digest))

    def _release_adapter(self, sequence: Sequence) -> None:
        if sequence.digest is not None:
            self._loader.release(sequence.digest)
