"""Which adapters a simulated worker has in host memory: all that it has brought. Nothing is too much for it."""


class SimulatedHostMemory:
    """As much of the engine's ``HostCache`` as the scheduler hears of."""

    def __init__(self) -> None:
        self._digests: set[str] = set()
        #: What has come or left since ``take_changes``.
        self._changed: set[str] = set()

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(sorted(self._digests))

    def add(self, digest: str) -> None:
        if digest not in self._digests:
            self._digests.add(digest)
            self._changed.add(digest)

    def forget(self, digest: str) -> None:
        if digest in self._digests:
            self._digests.remove(digest)
            self._changed.add(digest)

    def take_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What is here that was not when this was last asked, and the other way round."""
        changed, self._changed = self._changed, set()
        return tuple(sorted(changed & self._digests)), tuple(sorted(changed - self._digests))
