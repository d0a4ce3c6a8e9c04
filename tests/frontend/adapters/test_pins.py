from adapter_world import Bringing, World
from punica_frontend.adapters.registration import RegistrationRequest
from punica_frontend.api.caller import ANYONE


async def test_pins_are_sent_again_until_they_end(world: World, bringing: Bringing) -> None:
    adapter = (await world.registrar.register(ANYONE, RegistrationRequest("roman", pinned=True), bringing("1"))).adapter
    world.cluster.pinned.clear()  # the workers have started anew
    await world.pins.send()
    assert world.cluster.pinned == {adapter.ref.digest}
    # Another frontend takes it back, and this one hears of it from the registry.
    await world.registry.set_pinned("default", "roman", False, by="test")
    await world.pins.send()
    assert world.cluster.pinned == set()


async def test_the_pin_of_a_deleted_adapter_is_not_sent(world: World, bringing: Bringing) -> None:
    await world.registrar.register(ANYONE, RegistrationRequest("roman", pinned=True), bringing("1"))
    await world.pins.send()
    await world.registry.delete("default", "roman", by="test")
    world.cluster.resident.clear()
    await world.pins.send()
    assert world.cluster.resident == {}
