import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapter_world import Bringing, World
from punica_frontend.adapters.registration import Registered, RegistrationRequest
from punica_frontend.api.caller import ANYONE, Caller
from punica_serve.errors import (
    AdapterNotFound,
    AdapterRejected,
    Conflict,
    Forbidden,
    InvalidRequest,
    OutOfCapacity,
    RegistryUnavailable,
    StoreUnavailable,
)
from punica_serve.protocol import TenantQuota
from waits import DEADLINE_S, until

USER = Caller("default", "default", "user")


async def test_an_adapter_is_kept_and_named(world: World, bringing: Bringing) -> None:
    registered = await world.registrar.register(USER, RegistrationRequest("roman", "s3://bucket/roman"), bringing("1"))
    adapter = registered.adapter
    assert registered.is_new
    assert (adapter.full_name, adapter.version, adapter.source_uri) == ("default/roman", 1, "s3://bucket/roman")
    assert adapter.base_model == "numbers"
    assert world.registry.snapshot.adapter("default", "roman") == adapter
    assert world.stored() == {adapter.ref.digest}
    assert adapter.ref.uri == str(world.folder / "store" / adapter.ref.digest)
    assert os.listdir(world.folder / "staging") == os.listdir(world.folder / "staging")[:1]
    assert world.cluster.resident == {}


async def test_the_same_bytes_are_no_new_version_and_others_are(world: World, bringing: Bringing) -> None:
    for content, version, is_new in (("1", 1, True), ("1", 1, False), ("2", 2, True), ("1", 3, True)):
        registered = await world.registrar.register(USER, RegistrationRequest("roman"), bringing(content))
        assert (registered.adapter.version, registered.is_new) == (version, is_new)


async def test_of_the_same_bytes_at_once_one_is_new(world: World) -> None:
    """Both have their bytes checked before either is named."""
    arrivals = Arrivals(world)
    arrivals.start("default", 1)
    arrivals.start("default", 1)
    await until(lambda: arrivals.num_coming == 2)
    registered = await arrivals.end()
    assert {each.adapter.version for each in registered} == {1}
    assert sorted(each.is_new for each in registered) == [False, True]


async def test_two_names_may_share_their_bytes(world: World, bringing: Bringing) -> None:
    for name in ("a", "b"):
        await world.registrar.register(USER, RegistrationRequest(name), bringing("1"))
    assert len(world.stored()) == 1


async def test_a_name_that_must_be_new(world: World, bringing: Bringing) -> None:
    await world.registrar.register(USER, RegistrationRequest("roman", must_be_new=True), bringing("1"))
    with pytest.raises(Conflict, match="already"):
        await world.registrar.register(USER, RegistrationRequest("roman", must_be_new=True), bringing("2"))


@pytest.mark.parametrize("name", ["", "/", "a b", "x/", "/x", "a/b/c", "numbers", "-x", "x" * 129])
async def test_names_that_no_adapter_may_have(world: World, bringing: Bringing, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await world.registrar.register(ANYONE, RegistrationRequest(name), bringing("1"))
    assert not (world.folder / "staging").exists()


async def test_only_an_admin_registers_for_others(world: World, bringing: Bringing) -> None:
    await world.registry.put_tenant("acme", TenantQuota(), by="test")
    with pytest.raises(Forbidden, match="your key belongs to tenant 'default'"):
        await world.registrar.register(USER, RegistrationRequest("acme/roman"), bringing("1"))
    registered = await world.registrar.register(ANYONE, RegistrationRequest("acme/roman"), bringing("1"))
    assert registered.adapter.full_name == "acme/roman"


async def test_it_may_be_pinned_and_brought_to_gpus_at_once(world: World, bringing: Bringing) -> None:
    registered = await world.registrar.register(USER, RegistrationRequest("roman", prefetch=True), bringing("1"))
    assert {*world.cluster.resident} == {registered.adapter.ref.digest}
    registered = await world.registrar.register(USER, RegistrationRequest("greek", pinned=True), bringing("2"))
    assert registered.adapter.pinned and world.cluster.pinned == {registered.adapter.ref.digest}
    # A pin is the name's: the next version has it too.
    registered = await world.registrar.register(USER, RegistrationRequest("greek"), bringing("3"))
    assert registered.adapter.pinned and registered.adapter.ref.digest in world.cluster.pinned


async def test_without_a_scheduler_it_is_registered_all_the_same(world: World, bringing: Bringing) -> None:
    world.cluster.connected = False
    await world.registrar.register(USER, RegistrationRequest("roman", prefetch=True), bringing("1"))
    assert world.registry.snapshot.adapter("default", "roman")


@pytest.mark.parametrize("error", [AdapterRejected("tensor `x` is missing", param="x"), StoreUnavailable("full")])
async def test_a_failed_registration_leaves_nothing_behind(world: World, error: Exception) -> None:
    async def fail(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("half")
        raise error

    with pytest.raises(type(error)):
        await world.registrar.register(USER, RegistrationRequest("roman"), fail)
    with pytest.raises(AdapterNotFound):
        world.registry.snapshot.adapter("default", "roman")
    assert [os.listdir(world.folder / "staging" / own) for own in os.listdir(world.folder / "staging")] == [[]]
    assert not (world.folder / "store").exists()


async def test_a_full_disk_stops_registrations_and_nothing_else(
    world: World, bringing: Bringing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.registrar.register(USER, RegistrationRequest("roman"), bringing("1"))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(StoreUnavailable, match="full"):
            await world.registrar.register(USER, RegistrationRequest("roman"), bringing("2"))
    assert world.registry.snapshot.adapter("default", "roman").version == 1
    assert len(world.stored()) == 1
    assert (await world.registrar.register(USER, RegistrationRequest("roman"), bringing("2"))).adapter.version == 2


async def test_a_registry_that_is_down_stops_registrations_and_nothing_else(
    world: World, bringing: Bringing, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.registrar.register(USER, RegistrationRequest("roman"), bringing("1"))

    async def down(*_: Any, **__: Any) -> None:
        raise RegistryUnavailable("the registry is down")

    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "register", down)
        with pytest.raises(RegistryUnavailable):
            await world.registrar.register(USER, RegistrationRequest("roman"), bringing("2"))
    assert world.registry.snapshot.adapter("default", "roman").version == 1
    # The files that were put in vain go with the next look.
    assert len(world.stored()) == 2
    await world.deletions.step()
    assert len(world.stored()) == 1


class Arrivals:
    """Adapters whose bytes come when they are told to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.num_coming = 0
        self.may_come = asyncio.Event()
        self.tasks: list[asyncio.Task[Registered]] = []

    async def fetch(self, folder: Path) -> None:
        self.num_coming += 1
        await self.may_come.wait()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_text("1")
        self.num_coming -= 1

    def start(self, tenant: str, count: int) -> None:
        registering = (
            self._world.registrar.register(ANYONE, RegistrationRequest(f"{tenant}/a{i}"), self.fetch)
            for i in range(count)
        )
        self.tasks += map(asyncio.create_task, registering)

    async def end(self) -> list[Registered]:
        self.may_come.set()
        return await asyncio.gather(*self.tasks)


@pytest.fixture
async def arrivals(world: World) -> AsyncIterator[Arrivals]:
    for tenant in "abcd":
        await world.registry.put_tenant(tenant, TenantQuota(), by="test")
    arrivals = Arrivals(world)
    yield arrivals
    await arrivals.end()


async def test_slow_transfers_do_not_delay_others(world: World, bringing: Bringing, arrivals: Arrivals) -> None:
    for tenant in "abc":
        arrivals.start(tenant, 4)
    await until(lambda: arrivals.num_coming == 12)
    await asyncio.wait_for(world.registrar.register(USER, RegistrationRequest("roman"), bringing("2")), DEADLINE_S)
    assert arrivals.num_coming == 12


async def test_four_of_a_tenant_and_sixteen_in_all_are_on_their_way(
    world: World, bringing: Bringing, arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(caller: Caller) -> OutOfCapacity:
        with pytest.raises(OutOfCapacity, match="too many adapters are being uploaded or fetched") as caught:
            await world.registrar.register(caller, RegistrationRequest("roman"), bringing("2"))
        return caught.value

    limits = world.registrar._arrivals._limits
    monkeypatch.setattr(world.registrar._arrivals, "_limits", replace(limits, timeout_s=0.01))
    arrivals.start("a", 4)
    await until(lambda: arrivals.num_coming == 4)
    owner = await world.registry.tenant("a")
    assert (await refused(Caller(owner.tenant_id, "a", "user"))).retry_after_s
    await world.registrar.register(USER, RegistrationRequest("roman"), bringing("2"))
    for tenant in "bcd":
        arrivals.start(tenant, 4)
    await until(lambda: arrivals.num_coming == 16)
    await refused(USER)
    staged = [folder for own in (world.folder / "staging").iterdir() for folder in own.iterdir()]
    assert len(staged) == 16, "what is refused has no place on the disk"
    assert limits.timeout_s == 5.0, "as the documentation says"


async def test_an_adapter_that_awaits_its_check_keeps_its_transfer_slot(
    world: World, arrivals: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or one tenant could fill the disk with adapters that wait."""
    check, may_check, num_checks = world.registrar._check, asyncio.Event(), 0

    async def check_late(*arguments: Any) -> Any:
        nonlocal num_checks
        num_checks += 1
        await may_check.wait()
        return await check(*arguments)

    monkeypatch.setattr(world.registrar, "_check", check_late)
    patient = replace(world.registrar._arrivals._limits, timeout_s=DEADLINE_S)
    monkeypatch.setattr(world.registrar._arrivals, "_limits", patient)
    arrivals.may_come.set()
    arrivals.start("a", 12)
    await until(lambda: num_checks == 4)
    (own,) = (world.folder / "staging").iterdir()
    await until(lambda: len(list(own.iterdir())) == 8)
    await asyncio.sleep(0.05)
    assert len(list(own.iterdir())) == 8 and num_checks == 4
    may_check.set()


async def test_bytes_whose_files_are_just_being_removed_are_brought_again(world: World, bringing: Bringing) -> None:
    first = (await world.registrar.register(USER, RegistrationRequest("roman"), bringing("1"))).adapter
    await world.registry.delete("default", "roman", by="test")
    assert await world.registry.claim_files(first.ref.digest, "another frontend")
    registering = asyncio.create_task(world.registrar.register(USER, RegistrationRequest("roman"), bringing("1")))
    await asyncio.sleep(0.05)
    assert not registering.done()
    await world.store.delete(first.ref.digest)
    await world.registry.record_files_removed(first.ref.digest, "another frontend")
    assert (await registering).adapter.version == 2
    assert world.stored() == {first.ref.digest}
