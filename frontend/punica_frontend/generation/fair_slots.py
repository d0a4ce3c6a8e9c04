"""Slots that tenants share, and that no tenant can occupy alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from punica_serve.errors import OutOfCapacity


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """How many slots there are in all and for one tenant, and how long a request waits for one."""

    num_slots: int
    num_tenant_slots: int
    timeout_s: float
    #: Says, in errors, what there is too much of.
    too_much: str


@dataclass
class _Share:
    """One tenant's share of the slots. It exists while someone uses or awaits it."""

    slots: asyncio.Semaphore
    refcount: int = 0


class FairSlots:
    """Grants slots first come, first served. A tenant's requests beyond its share wait for its own slots first."""

    def __init__(self, limits: SlotLimits) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.num_slots)
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Holds a slot. Raises OutOfCapacity if none becomes free in time."""
        share = self._shares.setdefault(tenant, _Share(asyncio.Semaphore(self._limits.num_tenant_slots)))
        share.refcount += 1
        try:
            async with self._slot_in_time(share.slots):
                yield
        finally:
            share.refcount -= 1
            if share.refcount == 0:
                del self._shares[tenant]

    @asynccontextmanager
    async def _slot_in_time(self, share: asyncio.Semaphore) -> AsyncIterator[None]:
        deadline_s = asyncio.get_running_loop().time() + self._limits.timeout_s
        await self._acquire(share, deadline_s)
        try:
            await self._acquire(self._slots, deadline_s)
            try:
                yield
            finally:
                self._slots.release()
        finally:
            share.release()

    async def _acquire(self, slots: asyncio.Semaphore, deadline_s: float) -> None:
        try:
            async with asyncio.timeout_at(deadline_s):
                await slots.acquire()
        except TimeoutError:
            message = f"{self._limits.too_much}: no slot became free within {self._limits.timeout_s:g} s"
            raise OutOfCapacity(f"{message}; try again later", retry_after_s=self._limits.timeout_s) from None
