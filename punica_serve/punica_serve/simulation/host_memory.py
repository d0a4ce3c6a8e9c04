"""The adapters in a simulated worker's host memory: all that it has loaded, because its size is unlimited."""


class SimulatedHostMemory:
    """The part of the engine's ``HostCache`` that is reported to the scheduler."""

    def __init__(self) -> None:
        self._digests: set[str] = set()
        #: Digests added or evicted since ``take_changes``.
        self._changed: set[str] = set()

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(sorted(self._digests))

    def add(self, digest: str) -> None:
        if digest not in self._digests:
            self._digests.add(digest)
            self._changed.add(digest)

    def evict(self, digest: str) -> None:
        if digest in self._digests:
            self._digests.remove(digest)
            self._changed.add(digest)

    def take_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Digests added, and digests evicted, since the last call."""
        changed, self._changed = self._changed, set()
        return tuple(sorted(changed & self._digests)), tuple(sorted(changed - self._digests))
