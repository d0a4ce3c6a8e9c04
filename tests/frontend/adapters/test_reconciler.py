import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from adapter_world import Bringing, World
from punica_frontend.adapters import reconciler as reconciler_module
from punica_frontend.adapters.reconciler import AdapterReconciler
from punica_frontend.adapters.registration import RegistrationRequest
from punica_frontend.api.caller import ANYONE
from punica_serve.errors import ClusterUnavailable
from punica_serve.protocol import AdapterResidency
from punica_serve.registry.records import AdapterVersion
from waits import until


@pytest.fixture
async def reconciler(world: World) -> AsyncIterator[AdapterReconciler]:
    reconciler = AdapterReconciler(world.registry, world.deletions, world.pins, world.collector)
    running = asyncio.create_task(reconciler.run())
    yield reconciler
    running.cancel()
    await asyncio.wait([running])


async def registered(world: World, bringing: Bringing) -> AdapterVersion:
    adapter: AdapterVersion = (
        await world.registrar.register(ANYONE, RegistrationRequest("roman", prefetch=True), bringing("1"))
    ).adapter
    return adapter


async def delete(world: World) -> None:
    """The reconciler runs from here on."""
    await world.registry.delete("default", "roman", by="test")


async def deleted(world: World, bringing: Bringing) -> AdapterVersion:
    adapter = await registered(world, bringing)
    await delete(world)
    return adapter


async def test_waiting_ends_when_nothing_is_left(
    world: World, bringing: Bringing, reconciler: AdapterReconciler
) -> None:
    adapter = await deleted(world, bringing)
    assert await reconciler.wait_deleted([adapter], 30.0)
    assert world.stored() == set()


async def test_waiting_for_no_adapter_returns_at_once(reconciler: AdapterReconciler) -> None:
    assert await reconciler.wait_deleted([], 30.0)


async def test_waiting_ends(world: World, bringing: Bringing, reconciler: AdapterReconciler) -> None:
    adapter = await registered(world, bringing)
    world.cluster.in_use = {adapter.ref.digest}
    await delete(world)
    assert not await reconciler.wait_deleted([adapter], 0.3)
    world.cluster.in_use = set()
    assert await reconciler.wait_deleted([adapter], 30.0)


Call = Callable[..., Awaitable[tuple[AdapterResidency, ...]]]


def failing_at_first(call: Call) -> Call:
    """Fails five times, in turn by a bug of ours and for want of a scheduler."""
    failures = iter([ValueError("a bug"), ClusterUnavailable("the scheduler is away")] * 2 + [ValueError("a bug")])

    async def failing(*arguments: object) -> tuple[AdapterResidency, ...]:
        if failure := next(failures, None):
            raise failure
        return await call(*arguments)

    return failing


@pytest.mark.parametrize(
    ("patience_s", "levels"), [(60.0, ["ERROR"] * 3), (0.0, ["ERROR", "ERROR", "WARNING", "ERROR", "INFO"])]
)
async def test_it_survives_failures_and_logs_lasting_ones(
    world: World,
    bringing: Bringing,
    reconciler: AdapterReconciler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    patience_s: float,
    levels: list[str],
) -> None:
    """Short failures, as while a cluster starts, are not logged. Lasting ones and bugs are."""
    caplog.set_level("INFO", logger="punica_frontend")
    monkeypatch.setattr(reconciler_module, "PATIENCE_S", patience_s)
    adapter = await registered(world, bringing)
    monkeypatch.setattr(world.cluster, "residency", failing_at_first(world.cluster.residency))
    await delete(world)
    assert await reconciler.wait_deleted([adapter], 60.0)
    told = [record.levelname for record in caplog.records if "finishing deletions" in record.getMessage()]
    assert told == levels


async def test_deletions_left_from_before_the_start_are_completed(world: World, bringing: Bringing) -> None:
    """A frontend died in the middle of a deletion, the workers have started anew, and a runner was away."""
    await deleted(world, bringing)
    adapter = (await world.registrar.register(ANYONE, RegistrationRequest("greek", pinned=True), bringing("2"))).adapter
    world.cluster.pinned.clear()
    stray = "a" * 64
    world.cluster.resident[stray] = AdapterResidency(stray, disks=("host",))
    running = asyncio.create_task(AdapterReconciler(world.registry, world.deletions, world.pins, world.collector).run())
    await until(lambda: world.stored() == {*world.cluster.resident} == world.cluster.pinned == {adapter.ref.digest})
    running.cancel()
    await asyncio.wait([running])
