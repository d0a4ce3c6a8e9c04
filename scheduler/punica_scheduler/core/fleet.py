"""The GPUs that have joined, and which of them are being drained.

A draining GPU takes nothing new. Its requests run on until another GPU has room, and then move: a stream on a GPU that
is about to leave is better off than one in the queue. A draining runner waits for that until its own deadline. Then its
link goes down, and its remaining requests are queued as after any lost link.
"""

from collections import Counter

from punica_scheduler.core.capacity import Capacity
from punica_scheduler.core.gpu import GpuRecord
from punica_scheduler.core.gpu_index import GpuIndex
from punica_serve.errors import GpuNotFound, InvalidRequest
from punica_serve.errors.invariants import require
from punica_serve.paging.page_rule import UNLIMITED
from punica_serve.prefill_chunks import WHOLE_PROMPTS, PrefillBudget
from punica_serve.protocol import GpuInfo, Limits


class Fleet:
    """All GPUs, by UUID; those that take requests, in ``index``."""

    def __init__(self, prefill_budget: PrefillBudget = WHOLE_PROMPTS) -> None:
        """``prefill_budget``: the one by which all GPUs chunk prompts."""
        self._prefill_budget = prefill_budget
        self.gpus: dict[str, GpuRecord] = {}
        #: By name: a call may name thousands.
        self._named: dict[str, GpuRecord] = {}
        self.index = GpuIndex()
        #: Number of GPUs of each kind; no entry is 0.
        self.capacities: Counter[Capacity] = Counter()
        #: The same for GPUs that take requests.
        self.open_capacities: Counter[Capacity] = Counter()
        #: Rises with every change of the capacities, and so invalidates what was derived from them.
        self.version = 0
        #: Drained by an operator, UUID -> name. A worker that restarts is still drained; a scheduler that restarts
        #: forgets it.
        self._drained: dict[str, str] = {}
        #: Runners about to stop -> whether they were told that their GPUs are empty.
        self._drained_runners: dict[str, bool] = {}

    def join(self, runner_id: str, info: GpuInfo, now_ns: int) -> None:
        """Adds a GPU that has not joined."""
        require(info.uuid not in self.gpus, f"{info.uuid} is there")
        gpu = GpuRecord(info, runner_id, self._prefill_budget, idle_since_ns=now_ns)
        self.gpus[gpu.uuid] = self._named[info.name] = gpu
        self._count(self.capacities, gpu, 1)
        gpu.is_draining = self._is_drained(gpu)
        if not gpu.is_draining:
            self._open(gpu)

    def remove(self, gpu: GpuRecord) -> None:
        """A GPU whose working set is empty."""
        del self.gpus[gpu.uuid]
        if self._named.get(gpu.info.name) is gpu:  # and not the one that replaced it before it was lost
            del self._named[gpu.info.name]
        self._count(self.capacities, gpu, -1)
        self.index.prefixes.discard(gpu)
        self.index.holders.discard(gpu)
        if not gpu.is_draining:
            self._close(gpu)

    def find(self, uuid_or_name: str) -> GpuRecord | None:
        """The GPU with this UUID or name; None if none has joined."""
        return self.gpus.get(uuid_or_name) or self._named.get(uuid_or_name)

    def get(self, uuid_or_name: str, *, param: str) -> GpuRecord:
        """The GPU with this UUID or name. Raises GpuNotFound, about this parameter."""
        gpu = self.find(uuid_or_name)
        if gpu is None:
            names = ", ".join(sorted(gpu.info.name for gpu in self.gpus.values())) or "none"
            raise GpuNotFound(f"no GPU {uuid_or_name!r} is in the cluster; there are {names}", param=param)
        return gpu

    def of_runner(self, runner_id: str) -> list[GpuRecord]:
        return [gpu for gpu in self.gpus.values() if gpu.runner_id == runner_id]

    @property
    def limits(self) -> Limits:
        """The limits that frontends are told."""
        longest = max((capacity.num_tokens for capacity in self.capacities), default=UNLIMITED)
        limit = None if longest == UNLIMITED else longest
        return Limits(len(self.gpus), limit, num_draining=len(self.draining))

    # -------------------------------------------------------------- drains

    @property
    def draining(self) -> list[GpuRecord]:
        """GPUs that are being drained."""
        if not self._drained and not self._drained_runners:
            return []
        return [gpu for gpu in self.gpus.values() if gpu.is_draining]

    def drain_gpu(self, uuid_or_name: str, drain: bool) -> str:
        """Drains a GPU, or takes that back; returns its UUID.

        Raises GpuNotFound, or InvalidRequest for one that can't be kept. One that is drained may be gone for now; a GPU
        that has its name since goes first.
        """
        if self.find(uuid_or_name) is None and (gone := self._find_drained(uuid_or_name)) is not None:
            if not drain:
                del self._drained[gone]
            return gone
        gpu = self.get(uuid_or_name, param="gpu")
        if not drain and gpu.runner_id in self._drained_runners:
            message = f"GPU {gpu.info.name} goes with its runner {gpu.runner_id}, which is stopping"
            raise InvalidRequest(message, param="drain")
        if drain:
            self._drained[gpu.uuid] = gpu.info.name
        else:
            self._drained.pop(gpu.uuid, None)
        self._update(gpu)
        return gpu.uuid

    def _find_drained(self, uuid_or_name: str) -> str | None:
        """The UUID of a drained GPU, which may be gone."""
        return next((uuid for uuid, name in self._drained.items() if uuid_or_name in (uuid, name)), None)

    def drain_runner(self, runner_id: str) -> None:
        """Drains all GPUs that the runner has or will have, until its link goes down."""
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
        return gpu.uuid in self._drained or gpu.runner_id in self._drained_runners

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
            require(gpu.is_draining == self._is_drained(gpu), f"{gpu.uuid} is drained in part")
        named = self._named.values()
        require(all(self.gpus.get(gpu.uuid) is gpu for gpu in named), "a GPU that is gone has a name")
        self.index.check_invariants(self.gpus.values())
        require(self.capacities == Counter(gpu.capacity for gpu in self.gpus.values()), "kinds of GPUs are wrong")
        open_capacities = Counter(gpu.capacity for gpu in self.gpus.values() if not gpu.is_draining)
        require(self.open_capacities == open_capacities, "kinds of GPUs that take requests are wrong")
