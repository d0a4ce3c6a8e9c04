"""Removes usage and audit entries that are older than the config keeps them."""

import asyncio
import logging
import time
from typing import Never

from punica_serve.config.registry_section import RegistryConfig
from punica_serve.errors import RegistryUnavailable
from punica_serve.numbers import counted
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)

INTERVAL_S = 3600.0
#: Rows of one transaction, well within the database's deadline.
BATCH_ROWS = 1_000
#: Seconds between two batches, so that other changes can run.
PAUSE_S = 0.1

_DAY_S = 86_400.0


class Retention:
    """Runs in every frontend. Changes of the registry are serialized, so each row is removed once."""

    def __init__(self, registry: Registry, config: RegistryConfig) -> None:
        self._registry = registry
        self._tables = (
            ("usage", config.usage_days, registry.remove_usage),
            ("the audit log", config.audit_days, registry.remove_audit),
        )

    async def run(self) -> Never:
        """Runs until cancelled. Failures are retried at the next interval."""
        while True:
            try:
                await self.remove_old()
            except RegistryUnavailable as error:
                log.warning("can't remove old usage and audit entries yet: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def remove_old(self) -> None:
        """Raises RegistryUnavailable, possibly after removing some rows."""
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
