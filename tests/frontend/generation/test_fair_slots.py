import asyncio

import pytest

from punica_frontend.generation.fair_slots import FairSlots, SlotLimits
from punica_serve.errors import OutOfCapacity
from waits import until


async def test_a_tenant_can_not_take_all_slots() -> None:
    slots, inside, end = FairSlots(SlotLimits(3, 2, 60.0, "too many")), [], asyncio.Event()

    async def use(tenant: str) -> None:
        async with slots.slot(tenant):
            inside.append(tenant)
            await end.wait()

    tasks = [asyncio.create_task(use(tenant)) for tenant in ("a", "a", "a", "a", "b", "b")]
    await until(lambda: len(inside) == 3)
    assert sorted(inside) == ["a", "a", "b"]
    end.set()
    await asyncio.gather(*tasks)
    assert sorted(inside) == ["a"] * 4 + ["b"] * 2


async def test_tenants_take_turns_however_many_of_one_wait() -> None:
    slots, order = FairSlots(SlotLimits(1, 1, 60.0, "too many")), []

    async def use(tenant: str) -> None:
        async with slots.slot(tenant):
            order.append(tenant)
            await asyncio.sleep(0)

    await asyncio.gather(*(use(tenant) for tenant in "aaaaaabc"))
    assert set(order[1:3]) == {"b", "c"} and order.count("a") == 6


async def test_waiting_has_a_deadline() -> None:
    slots = FairSlots(SlotLimits(3, 2, 0.01, "too many adapters are being registered"))
    async with slots.slot("a"), slots.slot("a"):
        with pytest.raises(OutOfCapacity, match="too many adapters") as refused:
            async with slots.slot("a"):
                pass
        assert refused.value.retry_after_s
        async with slots.slot("b"):
            with pytest.raises(OutOfCapacity):
                async with slots.slot("c"):
                    pass
    # Nothing was lost.
    async with slots.slot("a"), slots.slot("a"), slots.slot("c"):
        pass
