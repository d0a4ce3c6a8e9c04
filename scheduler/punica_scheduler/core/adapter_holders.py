"""Which GPUs load an adapter soonest: it is on them, or in their workers' host memory."""

from collections.abc import Collection, Iterable, Set

from punica_scheduler.core.gpu import GpuRecord
from punica_serve.errors.invariants import require

_NOBODY: Set[GpuRecord] = frozenset()


class AdapterHolders:
    """GPUs by the digests that their workers have listed, draining ones too."""

    def __init__(self) -> None:
        self._gpus: dict[str, set[GpuRecord]] = {}

    def of(self, digest: str | None) -> Set[GpuRecord]:
        """Those that have the adapter; none for the base model."""
        return self._gpus.get(digest, _NOBODY) if digest is not None else _NOBODY

    def update(self, gpu: GpuRecord, digests: Iterable[str]) -> None:
        """These adapters came to the GPU or its worker, or left it."""
        resident = set(gpu.resident)
        for digest in digests:
            if digest in resident or digest in gpu.cached:
                self._gpus.setdefault(digest, set()).add(gpu)
            else:
                self._leave(gpu, digest)

    def discard(self, gpu: GpuRecord) -> None:
        """The GPU is gone, and its worker with it."""
        for digest in {*gpu.resident, *gpu.cached}:
            self._leave(gpu, digest)

    def _leave(self, gpu: GpuRecord, digest: str) -> None:
        if gpus := self._gpus.get(digest):
            gpus.discard(gpu)
            if not gpus:
                del self._gpus[digest]

    def check_invariants(self, gpus: Collection[GpuRecord]) -> None:
        """Against all GPUs that have joined. AssertionError is a bug of ours."""
        found = {(digest, gpu) for digest, holders in self._gpus.items() for gpu in holders}
        expected = {(digest, gpu) for gpu in gpus for digest in (*gpu.resident, *gpu.cached)}
        require(found == expected, "the GPUs that have adapters")
        require(all(self._gpus.values()), "an adapter that nobody has is kept")
