"""Which GPUs run requests of an adapter: one request more takes no LoRA pages there."""

from collections.abc import Collection, Set

from punica_scheduler.core.gpu import GpuRecord
from punica_serve.errors.invariants import require

_NOBODY: Set[GpuRecord] = frozenset()


class AdapterUsers:
    """GPUs by the digests of their working sets, draining ones too."""

    def __init__(self) -> None:
        self._gpus: dict[str, set[GpuRecord]] = {}

    def of(self, digest: str | None) -> Set[GpuRecord]:
        """Those that run requests of this adapter; none for the base model."""
        return self._gpus.get(digest, _NOBODY) if digest is not None else _NOBODY

    def update(self, gpu: GpuRecord, digest: str) -> bool:
        """A request of this adapter joined or left the working set; returns whether it is the first of its adapter."""
        users = self._gpus.setdefault(digest, set())
        is_first = digest in gpu.adapters.refcounts and gpu not in users
        if is_first:
            users.add(gpu)
        elif digest not in gpu.adapters.refcounts:
            users.discard(gpu)
        if not users:
            del self._gpus[digest]
        return is_first

    def check_invariants(self, gpus: Collection[GpuRecord]) -> None:
        """Against all GPUs that have joined. AssertionError is a bug of ours."""
        found = {(digest, gpu) for digest, users in self._gpus.items() for gpu in users}
        require(
            found == {(digest, gpu) for gpu in gpus for digest in gpu.adapters.refcounts if digest}, "adapters' users"
        )
        require(all(self._gpus.values()), "an adapter without users is kept")
