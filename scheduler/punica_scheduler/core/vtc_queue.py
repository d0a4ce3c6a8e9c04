"""A fair queue: the tenant that has been served least is next, and within a tenant who came first.

These are the virtual token counters of "Fairness in Serving Large Language Models" (Sheng et al., 2024; algorithm 2),
which S-LoRA uses too. A tenant's counter is the service it has had, in weighted tokens. A tenant that comes back after
a pause is lifted to where the others are, or it could claim everything for as long as its pause was.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import chain

from punica_scheduler.core.arrival_queue import ArrivalQueue
from punica_scheduler.core.request import RequestRecord
from punica_serve.errors.invariants import require

#: A generated token takes a step of its own, a prompt's tokens share one: the paper's weights.
INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2


class VtcQueue:
    """A queue for each waiting tenant, by its id. Requests without a tenant share one."""

    def __init__(self) -> None:
        self._queues: dict[str, ArrivalQueue] = {}
        #: Weighted tokens served to each tenant ever seen. A counter never falls.
        self._served: defaultdict[str, int] = defaultdict(int)
        #: (counter, tenant), one for each tenant that waits, and for some that don't any more. A counter in here may
        #: have risen since, never fallen: so the least is found by correcting what is on top.
        self._heap: list[tuple[int, str]] = []
        self._in_heap: set[str] = set()
        self._last_to_leave = ""

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[RequestRecord]:
        return chain.from_iterable(self._queues.values())

    @property
    def head(self) -> RequestRecord | None:
        tenant = self._least_served()
        return None if tenant is None else self._queues[tenant].head

    def add(self, record: RequestRecord) -> None:
        tenant = _tenant_of(record)
        if tenant not in self._queues:
            self._lift(tenant)
            self._queues[tenant] = ArrivalQueue()
            if tenant not in self._in_heap:
                self._in_heap.add(tenant)
                heappush(self._heap, (self._served[tenant], tenant))
        self._queues[tenant].add(record)

    def remove(self, record: RequestRecord) -> None:
        tenant = _tenant_of(record)
        self._queues[tenant].remove(record)
        if not self._queues[tenant]:
            del self._queues[tenant]
            self._last_to_leave = tenant

    def charge(self, records: Iterable[RequestRecord]) -> None:
        for record in records:
            num_generated = record.num_generated - len(record.request.generated_ids)
            service = INPUT_WEIGHT * record.num_prompt + OUTPUT_WEIGHT * num_generated
            if num_new := record.charge(service):
                self._served[_tenant_of(record)] += num_new

    def check_invariants(self) -> None:
        require(all(self._queues.values()), "a tenant's queue is empty")
        require(self._queues.keys() <= self._in_heap, "a tenant that waits is never next")
        require(sorted(tenant for _, tenant in self._heap) == sorted(self._in_heap), "a tenant is there twice")
        require(all(served <= self._served[tenant] for served, tenant in self._heap), "a counter has fallen")
        for tenant, line in self._queues.items():
            line.check_invariants()
            require(all(_tenant_of(record) == tenant for record in line), "a request waits in another tenant's queue")

    def _lift(self, tenant: str) -> None:
        """A tenant that begins to wait gets no credit for the time when it did not."""
        level = self._least_served()
        self._served[tenant] = max(self._served[tenant], self._served[self._last_to_leave if level is None else level])

    def _least_served(self) -> str | None:
        """The waiting tenant with the lowest counter."""
        while self._heap:
            served, tenant = self._heap[0]
            if tenant not in self._queues:
                heappop(self._heap)
                self._in_heap.remove(tenant)
            elif served < self._served[tenant]:
                heapreplace(self._heap, (self._served[tenant], tenant))
            else:
                return tenant
        return None


def _tenant_of(record: RequestRecord) -> str:
    return record.request.tenant_id or ""
