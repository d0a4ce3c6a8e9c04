"""The other ranks of a group, which load their shares of the same adapters to the same pages."""

from concurrent.futures import Future
from typing import Final, Protocol

from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.protocol import AdapterRef


class AdapterPeers(Protocol):
    """Told by the step loop's thread, which it never holds up."""

    def read(self, ref: AdapterRef) -> None:
        """An adapter is being read to host memory; its files are on this host."""
        ...

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]") -> "Future[None]":
        """An adapter is being copied to these pages. The future ends when ``own`` has and all peers have copied it."""
        ...

    def free(self, digest: str) -> None:
        """No step uses an adapter's pages any more."""
        ...

    def forget(self, digest: str) -> None:
        """An adapter leaves host memory."""
        ...


class _NoPeers:
    """One device has nobody to tell."""

    def read(self, ref: AdapterRef) -> None: ...

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]") -> "Future[None]":
        return own

    def free(self, digest: str) -> None: ...

    def forget(self, digest: str) -> None: ...


NO_PEERS: Final[AdapterPeers] = _NoPeers()
