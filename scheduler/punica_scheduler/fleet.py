"""The GPUs that have joined, and which of them are being drained.

A GPU that is drained takes nothing new. What runs there moves, by the one primitive, as soon as another GPU has room
for it, and until then runs on: a stream that stands in the queue is worse off than one on a GPU that is to go. A runner
that is drained waits for that until its own deadline; then its link goes, and what still runs there waits for a GPU
like after any lost link. Nothing is lost either way, but whoever can move, moves without having to wait.
"""

from collections import Counter

from punica_scheduler.capacity import Capacity
from punica_scheduler.gpu import GpuRecord
from punica_scheduler.gpu_index import GpuIndex
from punica_serve.errors import GpuNotFound, InvalidRequest
from punica_serve.protocol import GpuInfo, Limits


class Fleet:
    """All GPUs, by UUID; those that take requests, in ``index``."""

    def __init__(self) -> None:
        self.gpus: dict[str, GpuRecord] = {}
        self.index = GpuIndex()
        #: How many GPUs there are of each kind; no kind has none.
        self.capacities: Counter[Capacity] = Counter()
        #: The same of those that take requests.
        self.open_capacities: Counter[Capacity] = Counter()
        #: Rises with every change of these: what was found of them before may no longer be so.
        self.version = 0
        #: GPUs that someone drains. A worker that starts again is still drained; a restart of ours forgets it.
        self._drained_uuids: set[str] = set()
        #: Runners that are about to stop -> whether they know that nothing is left there.
        self._drained_runners: dict[str, bool] = {}

    def join(self, runner_id: str, info: GpuInfo, now_ns: int) -> None:
        """A GPU that is not there."""
        assert info.uuid not in self.gpus, f"{info.uuid} is there"
        gpu = GpuRecord(info, runner_id, idle_since_ns=now_ns)
        self.gpus[gpu.uuid] = gpu
        self._count(self.capacities, gpu, 1)
        gpu.is_draining = self._is_drained(gpu)
        if not gpu.is_draining:
            self._open(gpu)

    def remove(self, gpu: GpuRecord) -> None:
        """A GPU whose working set is empty."""
        del self.gpus[gpu.uuid]
        self._count(self.capacities, gpu, -1)
        if not gpu.is_draining:
            self._close(gpu)

    def of_runner(self, runner_id: str) -> list[GpuRecord]:
        return [gpu for gpu in self.gpus.values() if gpu.runner_id == runner_id]

    @property
    def limits(self) -> Limits:
        """What frontends should know."""
        capacities = (capacity.num_tokens for capacity in self.capacities)
        return Limits(len(self.gpus), max(capacities, default=None), num_draining=len(self.draining))

    # -------------------------------------------------------------- drains

    @property
    def draining(self) -> list[GpuRecord]:
        """GPUs that are being drained."""
        if not self._drained_uuids and not self._drained_runners:
            return []
        return [gpu for gpu in self.gpus.values() if gpu.is_draining]

    def drain_gpu(self, uuid: str, drain: bool) -> None:
        """Drains a GPU, or takes that back. Raises GpuNotFound, or InvalidRequest for one that can't be kept."""
        gpu = self.gpus.get(uuid)
        if gpu is None and uuid not in self._drained_uuids:
            names = ", ".join(sorted(self.gpus)) or "none"
            raise GpuNotFound(f"no GPU {uuid!r} is in the cluster; there are {names}", param="gpu")
        if not drain and gpu is not None and gpu.runner_id in self._drained_runners:
            raise InvalidRequest(f"GPU {uuid} goes with its runner {gpu.runner_id}, which is stopping", param="drain")
        if drain:
            self._drained_uuids.add(uuid)
        else:
            self._drained_uuids.discard(uuid)
        if gpu is not None:
            self._update(gpu)

    def drain_runner(self, runner_id: str) -> None:
        """Drains all GPUs that the runner has or will have. Its next link begins anew."""
        self._drained_runners.setdefault(runner_id, False)
        for gpu in self.of_runner(runner_id):
            self._update(gpu)

    def is_released(self, gpu: GpuRecord) -> bool:
        """Its runner is about to stop, and nothing is left there."""
        return gpu.runner_id in self._drained_runners and not gpu.working_set

    def forget_runner(self, runner_id: str) -> None:
        """Its link is down."""
        self._drained_runners.pop(runner_id, None)

    def take_drained_runners(self) -> list[str]:
        """Draining runners on whose GPUs nothing is left; each once."""
        waiting = [runner_id for runner_id, was_told in self._drained_runners.items() if not was_told]
        drained = [id_ for id_ in waiting if not any(gpu.working_set for gpu in self.of_runner(id_))]
        self._drained_runners.update(dict.fromkeys(drained, True))
        return drained

    def _is_drained(self, gpu: GpuRecord) -> bool:
        return gpu.uuid in self._drained_uuids or gpu.runner_id in self._drained_runners

    def _update(self, gpu: GpuRecord) -> None:
        was_draining, gpu.is_draining = gpu.is_draining, self._is_drained(gpu)
        if gpu.is_draining and not was_draining:
            self._close(gpu)
        elif was_draining and not gpu.is_draining:
            self._open(gpu)

    def _open(self, gpu: GpuRecord) -> None:
        self.index.add(gpu)
        self._count(self.open_capacities, gpu, 1)

    def _close(self, gpu: GpuRecord) -> None:
        self.index.discard(gpu)
        self._count(self.open_capacities, gpu, -1)

    def _count(self, capacities: Counter[Capacity], gpu: GpuRecord, change: int) -> None:
        self.version += 1
        capacities[gpu.capacity] += change
        if not capacities[gpu.capacity]:
            del capacities[gpu.capacity]

    def check_invariants(self) -> None:
        """AssertionError is a bug of ours."""
        for gpu in self.gpus.values():
            gpu.check_invariants()
            assert gpu.is_draining == self._is_drained(gpu), f"{gpu.uuid} is drained in part"
        self.index.check_invariants(self.gpus.values())
        assert self.capacities == Counter(gpu.capacity for gpu in self.gpus.values()), "kinds of GPUs are wrong"
        open_capacities = Counter(gpu.capacity for gpu in self.gpus.values() if not gpu.is_draining)
        assert self.open_capacities == open_capacities, "kinds of GPUs that take requests are wrong"
