"""Writes metered usage to the registry every second, so that a frontend that is killed loses little of it."""

import asyncio
import logging
import uuid
from typing import Never

from punica_frontend.tenancy.meter import Meter
from punica_serve.errors import RegistryUnavailable
from punica_serve.registry.records import Usage
from punica_serve.registry.registry import Registry

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
#: Rows that the registry writes well within its deadline.
MAX_BATCH_ROWS = 500


class UsageWriter:
    """Writes one batch at a time. Each batch has its own number and counts once, however often it is written.

    After a failure the registry may still have written the batch, so the same batch is sent again before any other.
    While the registry is down the meter continues within its bounds.
    """

    def __init__(self, meter: Meter, registry: Registry) -> None:
        self._meter = meter
        self._registry = registry
        self._source = f"frontend-{uuid.uuid4().hex}"
        #: The number of the current batch, which is the first MAX_BATCH_ROWS rows.
        self._number = 1
        self._rows: list[Usage] = []

    async def run(self) -> Never:
        """Runs until cancelled; ``close`` then writes the rest."""
        is_down = False
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.flush()
            except RegistryUnavailable as error:
                if not is_down:
                    log.warning("can't write usage yet: %s", error)
                is_down = True
            else:
                is_down = False

    async def flush(self) -> None:
        """Writes all usage. Raises RegistryUnavailable, and keeps what is not written."""
        await self._write()
        self._rows = self._meter.take()
        await self._write()

    async def close(self) -> None:
        """Writes the rest. If the registry does not take it, logs how much is lost."""
        try:
            await self.flush()
        except RegistryUnavailable as error:
            lost = [*self._rows, *self._meter.take()]
            num_requests = sum(row.num_requests for row in lost)
            num_tokens = sum(row.num_generated_tokens for row in lost)
            told = "usage of %d requests with %d generated tokens could not be written and is lost: %s"
            log.error(told, num_requests, num_tokens, error)

    async def _write(self) -> None:
        while batch := self._rows[:MAX_BATCH_ROWS]:
            await self._registry.add_usage(batch, source=self._source, number=self._number)
            self._number += 1
            del self._rows[:MAX_BATCH_ROWS]
