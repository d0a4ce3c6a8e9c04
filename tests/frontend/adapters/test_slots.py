import asyncio

import pytest

from punica_frontend.adapters import slots
from punica_frontend.adapters.slots import RegistrationSlots
from punica_serve.errors import OutOfCapacity
from waits import until


@pytest.fixture(autouse=True)
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "NUM_SLOTS", 3)
    monkeypatch.setattr(slots, "NUM_TENANT_SLOTS", 2)


async def test_a_tenant_can_not_take_all_slots() -> None:
    registrations, inside, end = RegistrationSlots(), [], asyncio.Event()

    async def register(tenant: str) -> None:
        async with registrations.slot(tenant):
            inside.append(tenant)
            await end.wait()

    tasks = [asyncio.create_task(register(tenant)) for tenant in ("a", "a", "a", "a", "b", "b")]
    await until(lambda: len(inside) == 3)
    assert sorted(inside) == ["a", "a", "b"]
    end.set()
    await asyncio.gather(*tasks)
    assert sorted(inside) == ["a"] * 4 + ["b"] * 2


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOT_TIMEOUT_S", 0.01)
    registrations = RegistrationSlots()
    async with registrations.slot("a"), registrations.slot("a"):
        with pytest.raises(OutOfCapacity, match="too many adapters") as refused:
            async with registrations.slot("a"):
                pass
        assert refused.value.retry_after_s
        async with registrations.slot("b"):
            with pytest.raises(OutOfCapacity):
                async with registrations.slot("c"):
                    pass
    # Nothing was lost.
    async with registrations.slot("a"), registrations.slot("a"), registrations.slot("c"):
        pass
