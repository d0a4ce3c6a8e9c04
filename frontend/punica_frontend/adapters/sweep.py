"""Files in the store, and copies on GPUs, hosts and disks, that no row of the registry names."""

import logging
import time

from punica_frontend.adapters.deletions import Deletions
from punica_frontend.adapters.staging import Staging
from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore

#: Files are left alone for so long after they were first seen to be nobody's: an operator may have pointed the
#: cluster at the wrong database.
GRACE_S = 3600.0

log = logging.getLogger(__name__)


class Sweep:
    """Finds what is nobody's, and removes it."""

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
        #: When each digest in the store was first seen to be nobody's, on the monotonic clock.
        self._orphaned_s: dict[str, float] = {}

    async def strays(self) -> None:
        """Has the cluster forget what a runner brought back that was away when an adapter was deleted."""
        somewhere = {residency.digest for residency in await self._client.residency()}
        # Read after the residency: what was registered before it came anywhere is in it.
        for digest in somewhere - (await self._registry.refresh()).digests():
            await self._client.forget(digest)

    async def files(self) -> None:
        """Removes files of the store that have been nobody's for long, and what dead frontends left on this host."""
        await self._staging.clean()
        stored = await self._store.digests()
        named = (await self._registry.refresh()).stored_digests() | (await self._registry.forgotten()).keys()
        now_s = time.monotonic()
        self._orphaned_s = {digest: self._orphaned_s.get(digest, now_s) for digest in stored - named}
        for digest, since_s in self._orphaned_s.items():
            if now_s - since_s > GRACE_S and await self._deletions.remove_files(digest):
                log.warning("removed files of adapter %s from the store: nothing named them", digest)
