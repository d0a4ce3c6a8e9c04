"""How many adapters are taken in at once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from punica_serve.errors import OutOfCapacity

#: Each holds an adapter's weights in memory while they are checked.
NUM_SLOTS = 8
#: A tenant that registers hundreds leaves room for the others.
NUM_TENANT_SLOTS = 4
#: A client that still has to send its bytes can wait, but not for ever.
SLOT_TIMEOUT_S = 60.0


@dataclass
class _Share:
    """A tenant's part of the slots, as long as somebody uses or awaits it."""

    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(NUM_TENANT_SLOTS))
    num_users: int = 0


class RegistrationSlots:
    """First come, first served among tenants: nobody awaits a common slot with more than its share of requests."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(NUM_SLOTS)
        self._shares: dict[str, _Share] = {}

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Raises OutOfCapacity when none is free in time."""
        share = self._shares.setdefault(tenant, _Share())
        share.num_users += 1
        try:
            async with _slot_in_time(share.slots, self._slots):
                yield
        finally:
            share.num_users -= 1
            if share.num_users == 0:
                del self._shares[tenant]


@asynccontextmanager
async def _slot_in_time(share: asyncio.Semaphore, slots: asyncio.Semaphore) -> AsyncIterator[None]:
    deadline_s = asyncio.get_running_loop().time() + SLOT_TIMEOUT_S
    await _acquire(share, deadline_s)
    try:
        await _acquire(slots, deadline_s)
        try:
            yield
        finally:
            slots.release()
    finally:
        share.release()


async def _acquire(slots: asyncio.Semaphore, deadline_s: float) -> None:
    try:
        async with asyncio.timeout_at(deadline_s):
            await slots.acquire()
    except TimeoutError:
        message = f"too many adapters are being registered: no slot became free within {SLOT_TIMEOUT_S:g} s"
        raise OutOfCapacity(f"{message}; try again later", retry_after_s=SLOT_TIMEOUT_S) from None
