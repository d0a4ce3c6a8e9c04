import pytest

from adapter_world import Bringing, World
from punica_frontend.adapters import garbage_collector
from punica_frontend.adapters.registration import RegistrationRequest
from punica_frontend.api.caller import ANYONE
from punica_serve.protocol import AdapterResidency

STRAY = "a" * 64


async def test_an_adapter_that_a_runner_brings_back_is_evicted(world: World, bringing: Bringing) -> None:
    await world.registrar.register(ANYONE, RegistrationRequest("roman", prefetch=True), bringing("1"))
    named = {*world.cluster.resident}
    world.cluster.resident[STRAY] = AdapterResidency(STRAY, disks=("host",))
    await world.collector.evict_orphans()
    assert {*world.cluster.resident} == named


async def test_files_that_nothing_names_go_after_a_while(
    world: World, bringing: Bringing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.registrar.register(ANYONE, RegistrationRequest("roman"), bringing("1"))
    named = world.stored()
    (world.folder / "store" / STRAY).mkdir()
    await world.collector.remove_orphaned_files()
    await world.collector.remove_orphaned_files()
    assert world.stored() == {*named, STRAY}
    monkeypatch.setattr(garbage_collector, "GRACE_S", 0.0)
    await world.collector.remove_orphaned_files()
    assert world.stored() == named
