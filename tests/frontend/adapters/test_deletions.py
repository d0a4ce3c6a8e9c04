import hashlib
import time
from pathlib import Path

import pytest

from adapter_world import Bringing, World
from punica_frontend.adapters.registration import RegistrationRequest
from punica_frontend.api.caller import ANYONE
from punica_serve.config.registry_section import sqlite_url
from punica_serve.errors import ClusterUnavailable, StoreUnavailable
from punica_serve.protocol import AdapterRef, AdapterResidency
from punica_serve.registry.database import Database
from punica_serve.registry.records import AdapterVersion
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters


def config_files(name: str, content: str) -> SharedAdapters:
    """An adapter with the bytes of what is brought."""
    ref = AdapterRef(hashlib.sha256(b"{}" + content.encode()).hexdigest(), "/adapters/roman", 100, {"q_proj": 8})
    return SharedAdapters(
        {name: AdapterVersion("shared", "shared", name, 1, ref, "/adapters/roman", None, None, False, created_s=0.0)}
    )


async def registered(world: World, bringing: Bringing, name: str = "roman", content: str = "1") -> AdapterRef:
    """On all GPUs."""
    wanted = RegistrationRequest(name, prefetch=True)
    ref: AdapterRef = (await world.registrar.register(ANYONE, wanted, bringing(content))).adapter.ref
    return ref


async def test_nothing_is_left(world: World, bringing: Bringing) -> None:
    ref = await registered(world, bringing)
    await world.registry.delete("default", "roman", by="test")
    assert {*await world.deletions.step()} == {ref.digest}
    assert world.cluster.resident == {} and world.stored() == {ref.digest}
    assert await world.deletions.step() == {}
    assert world.stored() == set()
    assert await world.registry.unused_files() == {}


async def test_an_adapter_in_use_stays_until_it_is_free(world: World, bringing: Bringing) -> None:
    ref = await registered(world, bringing)
    await world.registry.delete("default", "roman", by="test")
    world.cluster.in_use = {ref.digest}
    for _ in range(3):
        assert {*await world.deletions.step()} == {ref.digest}
    assert world.stored() == {ref.digest}
    world.cluster.in_use = set()
    await world.deletions.step()
    assert await world.deletions.step() == {}
    assert world.stored() == set()


async def test_an_adapter_that_another_frontend_just_deleted_does_not_count_as_served(
    world: World, bringing: Bringing, tmp_path: Path
) -> None:
    ref = await registered(world, bringing)
    other = Registry(Database(sqlite_url(tmp_path / "registry.db"), deadline_s=60.0), SharedAdapters(), time.time)
    await other.refresh()
    await other.delete("default", "roman", by="test")
    await other.close()
    world.cluster.in_use = {ref.digest}
    assert {*await world.deletions.step()} == {ref.digest}
    assert world.stored() == {ref.digest}


async def test_bytes_that_another_adapter_has_too_stay(world: World, bringing: Bringing) -> None:
    ref = await registered(world, bringing, "roman")
    await registered(world, bringing, "latin")
    await world.registry.delete("default", "roman", by="test")
    assert await world.deletions.step() == {}
    assert world.stored() == {*world.cluster.resident} == {ref.digest}


@pytest.mark.parametrize("shared", [config_files("roman", "1")])
async def test_only_the_stores_copy_goes_of_bytes_that_the_config_file_serves(
    world: World, bringing: Bringing, shared: SharedAdapters
) -> None:
    ref = await registered(world, bringing, "mine")
    assert ref.digest == shared.versions["roman"].ref.digest
    await world.registry.delete("default", "mine", by="test")
    world.cluster.resident[ref.digest] = AdapterResidency(ref.digest, num_live=1, gpus=("CPU-1",))
    assert {*await world.deletions.step()} == {ref.digest}
    assert world.stored() == {ref.digest}, "a request of the deleted name may still read it"
    world.cluster.resident[ref.digest] = AdapterResidency(ref.digest, gpus=("CPU-1",))
    assert await world.deletions.step() == {}
    assert world.stored() == set() and {*world.cluster.resident} == {ref.digest}


async def test_an_older_version_goes_too(world: World, bringing: Bringing) -> None:
    await registered(world, bringing, content="1")
    newer = await registered(world, bringing, content="2")
    await world.deletions.step()
    await world.deletions.step()
    assert world.stored() == {*world.cluster.resident} == {newer.digest}


async def test_a_failed_step_is_repeated(world: World, bringing: Bringing, monkeypatch: pytest.MonkeyPatch) -> None:
    ref = await registered(world, bringing)
    await world.registry.delete("default", "roman", by="test")
    world.cluster.connected = False
    with pytest.raises(ClusterUnavailable):
        await world.deletions.step()
    world.cluster.connected = True
    await world.deletions.step()

    async def fail(digest: str) -> None:
        raise StoreUnavailable("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "delete", fail)
        assert {*await world.deletions.step()} == {ref.digest}
    assert await world.deletions.step() == {}


async def test_a_store_that_is_down_is_tried_once_and_holds_up_no_gpu(
    world: World, bringing: Bringing, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        await registered(world, bringing, name, content=name)
        await world.registry.delete("default", name, by="test")
    await world.deletions.step()
    await registered(world, bringing, "d", content="d")
    await world.registry.delete("default", "d", by="test")
    tried = []

    async def fail(digest: str) -> None:
        tried.append(digest)
        raise StoreUnavailable("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "delete", fail)
        assert len(await world.deletions.step()) == 4
    assert len(tried) == 1 and world.cluster.resident == {}
    assert await world.deletions.step() == {}
