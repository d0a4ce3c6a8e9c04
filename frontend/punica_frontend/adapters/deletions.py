"""Completes deletions: an adapter leaves GPUs, hosts and disks, and then the store."""

import logging
import random
import time
from collections.abc import Mapping

from punica_frontend.scheduler_link.scheduler_client import SchedulerClient
from punica_serve.errors import StoreUnavailable
from punica_serve.registry.records import UnusedFiles
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore

#: For this long other frontends, whose snapshots lag a little, may still use the adapter.
GRACE_S = 2.0

log = logging.getLogger(__name__)


class Deletions:
    """Advances all deletions by one step. Repeating ``step`` until nothing is left completes them.

    It keeps no state between steps, so it does not matter which frontend took the last step, or whether it was lost.
    """

    def __init__(self, registry: Registry, store: AdapterStore, client: SchedulerClient, *, by: str) -> None:
        """``by`` identifies this process to other frontends."""
        self._registry = registry
        self._store = store
        self._client = client
        self._by = by

    async def step(self) -> Mapping[str, UnusedFiles]:
        """Returns the deletions that are still incomplete, by digest.

        Raises ClusterUnavailable and RegistryUnavailable.

        If an adapter of the config file has the same bytes, only the store's copy is deleted, once no request reads it.
        """
        unused = dict(await self._registry.unused_files())
        if not unused:
            return {}
        # Read after ``unused``, so that an adapter that was just deleted does not count as served by the config
        # file.
        served = (await self._registry.refresh()).digests()
        needed = set()
        for where in await self._client.residency(tuple(unused)):
            if where.digest not in served:
                needed.add(where.digest)
                await self._client.evict(where.digest)
            elif where.num_live:
                needed.add(where.digest)
        now_s = time.time()
        unneeded = [digest for digest in unused.keys() - needed if now_s - unused[digest].since_s > GRACE_S]
        for digest in await self._remove_files_of(unneeded):
            del unused[digest]
        return unused

    async def _remove_files_of(self, digests: list[str]) -> list[str]:
        """Returns the digests whose files were removed. Stops at the first failure: each may take the store's timeout.

        The order is random, so that files that can't be deleted don't always block the same others.
        """
        removed = []
        for digest in random.sample(digests, len(digests)):
            try:
                if await self.remove_files(digest):
                    removed.append(digest)
            except StoreUnavailable as error:
                log.warning("can't delete the files of adapter %s yet: %s", digest, error)
                break
        return removed

    async def remove_files(self, digest: str) -> bool:
        """Returns whether the store's copy was removed; not while the same bytes are being registered."""
        if not await self._registry.claim_files(digest, self._by):
            return False
        await self._store.delete(digest)
        await self._registry.record_files_removed(digest, self._by)
        return True
