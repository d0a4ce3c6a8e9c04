"""Where adapters are, how many requests use them, and which are to be prefetched or evicted.

An adapter is evicted once no request uses it. So the eviction waits for the last request, queued ones included, and
after a start until frontends have added their requests again. A later request simply reloads it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from punica_scheduler.core.fleet import Fleet
from punica_scheduler.core.gpu import GpuRecord
from punica_serve.errors import ClusterUnavailable
from punica_serve.errors.invariants import require
from punica_serve.protocol import AdapterResidency


class Adapters:
    """Knows of each adapter by its digest."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Requests that run or wait for it; none is 0.
        self.num_live: Counter[str] = Counter()
        #: Runner id -> what its disk has.
        self._disks: defaultdict[str, set[str]] = defaultdict(set)
        #: Marked for eviction, once no request uses them.
        self._unwanted: set[str] = set()

    # -------------------------------------------------------------- users

    def began(self, digest: str | None) -> None:
        """A request that uses it was admitted."""
        if digest is not None:
            self.num_live[digest] += 1

    def ended(self, digest: str | None) -> None:
        """A request that used it has ended."""
        if digest is not None:
            self.num_live[digest] -= 1
            if not self.num_live[digest]:
                del self.num_live[digest]

    # -------------------------------------------------------------- where they are

    def cached(self, runner_id: str, gpu_uuid: str | None, came: Collection[str], left: Collection[str]) -> None:
        """Adapters that entered and left a worker's host memory, or the runner's disk. Ignores GPUs that are gone."""
        if gpu_uuid is None:
            _change(self._disks[runner_id], came, left)
        elif gpu := self._fleet.gpus.get(gpu_uuid):
            _change(gpu.cached, came, left)
            self._fleet.index.holders.update(gpu, {*came, *left})

    def lose_runner(self, runner_id: str) -> None:
        """Forgets its disk: the runner lists it again when it is back."""
        self._disks.pop(runner_id, None)

    def is_near(self, digest: str, gpu: GpuRecord) -> bool:
        """Whether it loads without the store: from the GPU, its worker's host memory or its runner's disk."""
        return digest in gpu.resident or digest in gpu.cached or digest in self._disks.get(gpu.runner_id, ())

    def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        """Where these adapters are, or all. Those that are nowhere and unused are left out."""
        gpus: defaultdict[str, list[str]] = defaultdict(list)
        hosts: defaultdict[str, list[str]] = defaultdict(list)
        disks: defaultdict[str, list[str]] = defaultdict(list)
        for uuid, gpu in sorted(self._fleet.gpus.items()):
            for digest in gpu.resident:
                gpus[digest].append(uuid)
            for digest in gpu.cached:
                hosts[digest].append(uuid)
        for runner_id, held in sorted(self._disks.items()):
            for digest in held:
                disks[digest].append(runner_id)
        known = gpus.keys() | hosts.keys() | disks.keys() | self.num_live.keys()
        return tuple(
            AdapterResidency(
                digest,
                self.num_live[digest],
                tuple(gpus.get(digest, ())),
                tuple(hosts.get(digest, ())),
                tuple(disks.get(digest, ())),
            )
            for digest in sorted(known.intersection(digests) if digests else known)
        )

    # -------------------------------------------------------------- prefetch and evict

    def warm(self, digest: str, wanted: Collection[str]) -> list[GpuRecord]:
        """The GPUs to prefetch it to: those with these UUIDs or names, or all.

        Raises GpuNotFound, and ClusterUnavailable if there is no GPU.
        """
        gpus = self._fleet.gpus
        if not gpus:
            raise ClusterUnavailable("no GPU has joined the cluster yet; try again later")
        uuids = {self._fleet.get(gpu, param="gpus").uuid for gpu in sorted(wanted)}
        self._unwanted.discard(digest)
        return [gpus[uuid] for uuid in sorted(uuids or gpus)]

    def evict(self, digest: str) -> None:
        """Marks it for eviction; ``take_evictable`` returns it once nobody uses it."""
        self._unwanted.add(digest)

    def take_evictable(self) -> list[str]:
        """Adapters marked for eviction that nobody uses; each once."""
        if not self._unwanted:
            return []
        evictable = sorted(self._unwanted - self.num_live.keys())
        self._unwanted.difference_update(evictable)
        return evictable

    def check_invariants(self, digests: Iterable[str | None]) -> None:
        """Against the adapters of all live requests. AssertionError is a bug of ours."""
        require(self.num_live == Counter(digest for digest in digests if digest is not None), "users of adapters")


def _change(held: set[str], came: Iterable[str], left: Iterable[str]) -> None:
    held.update(came)
    held.difference_update(left)
