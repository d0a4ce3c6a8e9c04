"""From the registry's list of what is to go to nothing left of it: on GPUs, hosts and disks, and then in the store."""

import logging
import random
import time
from collections.abc import Mapping

from punica_frontend.scheduler_client import SchedulerClient
from punica_serve.errors import StoreUnavailable
from punica_serve.registry.records import Forgotten
from punica_serve.registry.registry import Registry
from punica_serve.store.adapter_store import AdapterStore

#: Until then another frontend may still give the adapter to a request: its snapshot is a little behind.
GRACE_S = 2.0

log = logging.getLogger(__name__)


class Deletions:
    """Does one step for each adapter that is to go; whoever repeats it until none is left has deleted them.

    Nothing is remembered in between, so it makes no difference who did the last step, or whether it was lost.
    """

    def __init__(self, registry: Registry, store: AdapterStore, client: SchedulerClient, *, by: str) -> None:
        """``by`` names this process to others that do the same."""
        self._registry = registry
        self._store = store
        self._client = client
        self._by = by

    async def step(self) -> Mapping[str, Forgotten]:
        """What is left, by digest. Raises ClusterUnavailable and RegistryUnavailable.

        Where an adapter of the config file has the same bytes, the store's copy alone goes, once no request reads it.
        """
        forgotten = dict(await self._registry.forgotten())
        if not forgotten:
            return {}
        # Of a snapshot that is no older: what was just deleted must not be taken for what the config file serves.
        served = (await self._registry.refresh()).digests()
        needed = set()
        for where in await self._client.residency(tuple(forgotten)):
            if where.digest not in served:
                needed.add(where.digest)
                await self._client.forget(where.digest)
            elif where.num_live:
                needed.add(where.digest)
        now_s = time.time()
        unneeded = [digest for digest in forgotten.keys() - needed if now_s - forgotten[digest].since_s > GRACE_S]
        for digest in await self._remove_files_of(unneeded):
            del forgotten[digest]
        return forgotten

    async def _remove_files_of(self, digests: list[str]) -> list[str]:
        """Those that could be removed. A store that is down is tried once: it may take its time for every answer.

        In any order: files that it does not give up must not be in the way of the same others for ever.
        """
        removed = []
        for digest in random.sample(digests, len(digests)):
            try:
                if await self.remove_files(digest):
                    removed.append(digest)
            except StoreUnavailable as error:
                log.warning("the files of adapter %s stay for now: %s", digest, error)
                break
        return removed

    async def remove_files(self, digest: str) -> bool:
        """Whether the store's copy could be removed: not while a registration of the same bytes is on its way."""
        if not await self._registry.claim_files(digest, self._by):
            return False
        await self._store.delete(digest)
        await self._registry.mark_forgotten(digest, self._by)
        return True
