"""Where adapters are, who uses them, and what is to be warmed or forgotten.

An adapter is forgotten once no request uses it. So what is to be forgotten waits for the last of them, those in the
queue too, and after a start for the frontends to have told what they own. Forgetting is once and no ban: a request that
comes later has the adapter loaded again.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from punica_scheduler.fleet import Fleet
from punica_scheduler.gpu import GpuRecord
from punica_serve.errors import ClusterUnavailable, GpuNotFound
from punica_serve.protocol import AdapterResidency


class Adapters:
    """Knows of each adapter by its digest."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Requests that run or wait for it; none is 0.
        self.num_live: Counter[str] = Counter()
        #: Runner id -> what its disk has.
        self._disks: defaultdict[str, set[str]] = defaultdict(set)
        #: To be forgotten, once no request uses them.
        self._unwanted: set[str] = set()

    # -------------------------------------------------------------- users

    def began(self, digest: str | None) -> None:
        """A request that uses it is there."""
        if digest is not None:
            self.num_live[digest] += 1

    def ended(self, digest: str | None) -> None:
        """A request that used it has ended."""
        if digest is not None:
            self.num_live[digest] -= 1
            if not self.num_live[digest]:
                del self.num_live[digest]

    # -------------------------------------------------------------- where they are

    def cached(self, runner_id: str, gpu_uuid: str | None, came: Iterable[str], left: Iterable[str]) -> None:
        """What a worker's host memory, or the runner's disk, has now. Of GPUs that are gone nothing is known."""
        if gpu_uuid is None:
            held = self._disks[runner_id]
        elif gpu := self._fleet.gpus.get(gpu_uuid):
            held = gpu.cached
        else:
            return
        held.update(came)
        held.difference_update(left)

    def lose_runner(self, runner_id: str) -> None:
        """It tells again what its disk has when it is back."""
        self._disks.pop(runner_id, None)

    def is_near(self, digest: str, gpu: GpuRecord) -> bool:
        """On the GPU, in its worker's host memory or on its runner's disk: it comes without the store."""
        return digest in gpu.resident or digest in gpu.cached or digest in self._disks.get(gpu.runner_id, ())

    def residency(self, digests: Collection[str] = ()) -> tuple[AdapterResidency, ...]:
        """Of these, or of all, those that are anywhere or in use."""
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

    # -------------------------------------------------------------- what is to become of them

    def warm(self, digest: str, gpu_uuids: Collection[str]) -> list[GpuRecord]:
        """Where it is to be brought: to these GPUs, or to all. Raises GpuNotFound, or ClusterUnavailable for none."""
        gpus = self._fleet.gpus
        if not gpus:
            raise ClusterUnavailable("no GPU has joined the cluster yet; try again later")
        if missing := sorted(set(gpu_uuids) - gpus.keys()):
            names = ", ".join(sorted(gpus))
            raise GpuNotFound(f"no GPU {missing[0]!r} is in the cluster; there are {names}", param="gpus")
        self._unwanted.discard(digest)
        return [gpus[uuid] for uuid in sorted(set(gpu_uuids) or gpus)]

    def forget(self, digest: str) -> None:
        """It is to go as soon as ``take_forgettable`` gives it."""
        self._unwanted.add(digest)

    def take_forgettable(self) -> list[str]:
        """What is to be forgotten and used by nobody; each once."""
        if not self._unwanted:
            return []
        forgettable = sorted(self._unwanted - self.num_live.keys())
        self._unwanted.difference_update(forgettable)
        return forgettable

    def check_invariants(self, digests: Iterable[str | None]) -> None:
        """Against the adapters of all live requests. AssertionError is a bug of ours."""
        assert self.num_live == Counter(digest for digest in digests if digest is not None), "users of adapters"
