"""Removes files in the store, and copies on GPUs, hosts and disks, that no row of the registry names."""

import logging
import time

from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.staging import Staging
from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore

#: How long files stay after they were first found orphaned: the operator may have configured the wrong database.
GRACE_S = 3600.0

log = logging.getLogger(__name__)


class AdapterGarbageCollector:
    """Finds orphaned adapters and removes them."""

    def __init__(
        self,
        registry: Registry,
        store: AdapterStore,
        client: SchedulerClient,
        staging: Staging,
        deletions: Deletions,
    ) -> None:
        self._registry = registry
        self._store = store
        self._client = client
        self._staging = staging
        self._deletions = deletions
        #: When each digest in the store was first found orphaned, on the monotonic clock.
        self._orphaned_s: dict[str, float] = {}

    async def evict_orphans(self) -> None:
        """Evicts copies that a runner brought back after missing a deletion."""
        somewhere = {residency.digest for residency in await self._client.residency()}
        # Read after the residency, so that it includes every adapter registered before it was loaded.
        for digest in somewhere - (await self._registry.refresh()).digests():
            await self._client.evict(digest)

    async def remove_orphaned_files(self) -> None:
        """Removes files orphaned for GRACE_S from the store, and leftovers of dead frontends on this host."""
        await self._staging.clean()
        stored = await self._store.digests()
        named = (await self._registry.refresh()).stored_digests() | (await self._registry.unused_files()).keys()
        now_s = time.monotonic()
        self._orphaned_s = {digest: self._orphaned_s.get(digest, now_s) for digest in stored - named}
        for digest, since_s in self._orphaned_s.items():
            if now_s - since_s > GRACE_S and await self._deletions.remove_files(digest):
                log.warning("removed files of adapter %s from the store: no adapter refers to them", digest)
