"""The other ranks of a group, which load their shares of the same adapters to the same pages."""

import math
import time
from concurrent.futures import Future
from typing import Final, Protocol

from punica_serve.engine.adapters.lora_pool import AdapterPages
from punica_serve.protocol import AdapterRef


class GroupCopy:
    """The copies of one adapter to the devices of all ranks."""

    def __init__(self, done: "Future[None]", queued_s: float | None = None) -> None:
        """``done`` ends when all ranks have copied the adapter, with the first error, if there was one."""
        self.done = done
        #: When the last of the peers could promise that its layers arrive, by ``perf_counter``; None: not yet.
        self.queued_s = queued_s

    def mark_queued(self) -> None:
        """Tells that a step may wait for the layers of each peer's copy."""
        self.queued_s = time.perf_counter()


class AdapterPeers(Protocol):
    """Called on the step loop's thread; no call blocks."""

    def read(self, ref: AdapterRef) -> None:
        """Tells that an adapter is being read to host memory. Its files are on all hosts, or are coming to them."""
        ...

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]", *, by_layer: bool) -> GroupCopy:
        """Tells that an adapter is being copied to these pages: ``own`` is this rank's copy.

        ``by_layer``: the peers tell when steps may wait for its layers.
        """
        ...

    def free(self, digest: str) -> None:
        """Tells that no step uses the adapter's pages any more."""
        ...

    def forget(self, digest: str) -> None:
        """Tells that an adapter leaves host memory."""
        ...


class _NoPeers:
    """One device has nobody to tell."""

    def read(self, ref: AdapterRef) -> None: ...

    def copy(self, ref: AdapterRef, pages: AdapterPages, own: "Future[None]", *, by_layer: bool) -> GroupCopy:
        return GroupCopy(own, -math.inf)

    def free(self, digest: str) -> None: ...

    def forget(self, digest: str) -> None: ...


NO_PEERS: Final[AdapterPeers] = _NoPeers()
