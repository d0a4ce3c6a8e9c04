"""Writes what the meter counted to the registry, so that a frontend that dies loses a second of it at most."""

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
#: What the registry takes well within its deadline.
MAX_BATCH_ROWS = 500


class UsageWriter:
    """Writes one batch at a time. A batch counts once, however often it is written: each has its own number.

    A registry that was lost may have taken a batch all the same, so it gets the very same again before any other.
    While it is down the meter goes on adding up, within its own bounds.
    """

    def __init__(self, meter: Meter, registry: Registry) -> None:
        self._meter = meter
        self._registry = registry
        self._source = f"frontend-{uuid.uuid4().hex}"
        #: Of the batch at hand: the first of the rows, at most MAX_BATCH_ROWS.
        self._number = 1
        self._rows: list[Usage] = []

    async def run(self) -> Never:
        """Until it is cancelled; ``flush`` then writes what is left."""
        is_down = False
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.flush()
            except RegistryUnavailable as error:
                if not is_down:
                    log.warning("usage waits to be written: %s", error)
                is_down = True
            else:
                is_down = False

    async def flush(self) -> None:
        """Writes all that was counted. Raises RegistryUnavailable, and then keeps what is not written."""
        await self._write()
        self._rows = self._meter.take()
        await self._write()

    async def _write(self) -> None:
        while batch := self._rows[:MAX_BATCH_ROWS]:
            await self._registry.add_usage(batch, source=self._source, number=self._number)
            self._number += 1
            del self._rows[:MAX_BATCH_ROWS]
