"""The adapters of a worker that the scheduler knows of: reports name changes alone."""

from typing import Protocol

from punica_serve.protocol import AdaptersCached


class HostAdapters(Protocol):
    """The adapters in a worker's host memory."""

    @property
    def digests(self) -> tuple[str, ...]: ...

    def take_changes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Digests added, and digests evicted, since the last call."""


class ReportedAdapters:
    """Digests that one GPU's reports have named."""

    def __init__(self, gpu_uuid: str) -> None:
        self._gpu_uuid = gpu_uuid
        #: Those reported last as resident on the GPU; None after a Reset.
        self._resident: tuple[str, ...] | None = ()
        #: Whether the scheduler knows those in host memory up to the newest changes.
        self._has_reported_host = True

    def reset(self) -> None:
        """Has all of them reported again, because the scheduler may be a new one."""
        self._resident = None
        self._has_reported_host = False

    def is_resident_known(self, resident: tuple[str, ...]) -> bool:
        return resident is self._resident or resident == self._resident

    def resident(self, resident: tuple[str, ...]) -> tuple[str, ...] | None:
        """The resident adapters to put into a report: None if the scheduler knows them."""
        is_known, self._resident = self.is_resident_known(resident), resident
        return None if is_known else resident

    def in_host_memory(self, host: HostAdapters) -> list[AdaptersCached]:
        """Reports the adapters added to host memory, or evicted from it, since the last report."""
        added, evicted = host.take_changes()
        if not self._has_reported_host:
            # Evictions are reported too: the scheduler may just have received, late, that the adapter was added.
            added, self._has_reported_host = host.digests, True
        return [AdaptersCached(self._gpu_uuid, added, evicted)] if added or evicted else []
