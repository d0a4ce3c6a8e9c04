"""Removes usage and entries of the audit log once they are older than the config keeps them."""

import asyncio
import logging
import time
from typing import Never

from punica_serve.counted import counted
from punica_serve.errors import RegistryUnavailable
from punica_serve.registry.config import RegistryConfig
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)

INTERVAL_S = 3600.0
#: Of one transaction: what a database removes well within its deadline.
BATCH_ROWS = 1_000
#: Between two batches, so that changes of others come in between.
PAUSE_S = 0.1

_DAY_S = 86_400.0


class Retention:
    """Each frontend has one. However many there are, a row goes once: changes are made one at a time."""

    def __init__(self, registry: Registry, config: RegistryConfig) -> None:
        self._registry = registry
        self._tables = (
            ("usage", config.usage_days, registry.remove_usage),
            ("the audit log", config.audit_days, registry.remove_audit),
        )

    async def run(self) -> Never:
        """Until it is cancelled. What can't be removed now is tried again the next time."""
        while True:
            try:
                await self.remove_old()
            except RegistryUnavailable as error:
                log.warning("old usage and entries of the audit log stay for now: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def remove_old(self) -> None:
        """Raises RegistryUnavailable, and then has removed some."""
        for what, num_days, remove in self._tables:
            if num_days is None:
                continue
            before_s = time.time() - num_days * _DAY_S
            num_removed = 0
            while num_rows := await remove(before_s, BATCH_ROWS):
                num_removed += num_rows
                await asyncio.sleep(PAUSE_S)
            if num_removed:
                removed, days = counted(num_removed, "row"), counted(num_days, "day")
                log.info("removed %s of %s, older than %s", removed, what, days)
