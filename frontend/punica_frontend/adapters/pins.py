"""Pins: pinned adapters stay in every runner's host memory, and leave a GPU only for adapters in use."""

from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.protocol import AdapterRef
from punica_serve.registry.registry import Registry


class Pins:
    """Sends the registry's pins to the cluster repeatedly, since new workers have none."""

    def __init__(self, registry: Registry, client: SchedulerClient) -> None:
        self._registry = registry
        self._client = client
        #: The pins that this process sent last.
        self._sent: dict[str, AdapterRef] = {}

    async def send(self) -> None:
        """Raises ClusterUnavailable."""
        snapshot = self._registry.snapshot
        pinned = {adapter.ref.digest: adapter.ref for adapter in snapshot.pinned()}
        # For a digest without versions the deletion ends the pin.
        ended = [ref for digest, ref in self._sent.items() if digest not in pinned and digest in snapshot.digests()]
        for ref in ended:
            await self._client.prefetch(ref, pin=False)
        for ref in pinned.values():
            await self._client.prefetch(ref, pin=True)
        self._sent = pinned
