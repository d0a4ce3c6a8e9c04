"""Copies to the device that a step waits for while it runs, layer by layer."""

from punica_serve.engine.adapters.adapter_table import AdapterTable
from punica_serve.engine.adapters.copy_forecast import StepForecast
from punica_serve.engine.adapters.entry import AdapterState
from punica_serve.engine.adapters.host_cache import HostCopy
from punica_serve.engine.adapters.layer_arrival import Arrival
from punica_serve.engine.adapters.writer import LoraWriter


class StepArrivals:
    """Says which steps may wait for an adapter that is being copied, and how long. It starts no copy."""

    def __init__(self, adapters: AdapterTable, writer: LoraWriter) -> None:
        self._adapters = adapters
        self._writer = writer

    def arrival(self, digest: str) -> Arrival | None:
        """The copy that a step with this adapter must wait for, layer by layer; None if the adapter is resident."""
        return self._adapters[digest].arrival

    def can_join(self, digest: str) -> bool:
        """Whether a step can wait for the adapter's layers: it is being copied, and all of the copy is queued."""
        entry = self._adapters.get(digest)
        return entry is not None and entry.is_awaitable

    def under_way(self, digest: str) -> tuple[HostCopy, Arrival] | None:
        """The adapter in host memory and its copy to the device, while it is being copied and no step waits for it, and
        once every peer could wait for its layers.
        """
        entry = self._adapters.get(digest)
        if entry is None or entry.state is not AdapterState.COPYING or entry.copy is None or entry.arrival is None:
            return None
        if entry.filling is None or entry.filling.queued_s is None:
            return None
        return entry.copy, entry.arrival

    def arrives_in_s(self, arrival: Arrival, step: StepForecast) -> list[float] | None:
        """See ``CopyForecast.arrives_in_s``."""
        return self._writer.arrives_in_s(arrival, step)

    def join_hold_s(self, digest: str, step: StepForecast) -> float | None:
        """How long a step that can join would wait for the adapter's layers, at most; None if that is unknown."""
        arrival = self._adapters[digest].arrival
        return self._writer.hold_s(arrival, step) if arrival is not None else None

    def join(self, digest: str) -> None:
        """A step was launched that waits for the adapter's layers. Steps after it may use the adapter."""
        entry = self._adapters[digest]
        if entry.state is AdapterState.COPYING:
            entry.join()

    def stop_joining(self, digest: str) -> None:
        """A step that waited for the adapter's layers was given up. The next one waits for all of the adapter."""
        if (entry := self._adapters.get(digest)) is not None:
            entry.stop_joining()
