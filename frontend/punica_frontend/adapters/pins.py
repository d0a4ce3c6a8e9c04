"""What is pinned stays in the host memory of every runner, and leaves a GPU only for adapters in use."""

from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.protocol import AdapterRef
from punica_serve.registry.registry import Registry


class Pins:
    """Tells the cluster what the registry has pinned, again and again: workers that start know of no pins."""

    def __init__(self, registry: Registry, client: SchedulerClient) -> None:
        self._registry = registry
        self._client = client
        #: What this process told the cluster last.
        self._sent: dict[str, AdapterRef] = {}

    async def send(self) -> None:
        """Raises ClusterUnavailable."""
        snapshot = self._registry.snapshot
        pinned = {adapter.ref.digest: adapter.ref for adapter in snapshot.pinned()}
        # Of a digest that no version has, the deletion ends the pin.
        ended = [ref for digest, ref in self._sent.items() if digest not in pinned and digest in snapshot.digests()]
        for ref in ended:
            await self._client.warm(ref, pin=False)
        for ref in pinned.values():
            await self._client.warm(ref, pin=True)
        self._sent = pinned
