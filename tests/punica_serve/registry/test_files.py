"""A registration and the removal of the same bytes, in every order."""

import asyncio

import pytest

from punica_serve.errors import Conflict
from punica_serve.registry.files import CLAIM_S, KEEP_S
from punica_serve.registry.records import UnusedFiles
from punica_serve.registry.registry import Registry
from punica_serve.registry.shared_adapters import SharedAdapters
from registries import NO_QUOTA, Clock, OpenRegistry, ref_of, shared_version

pytestmark = pytest.mark.anyio


async def test_files_are_unused_when_no_adapter_has_them_any_more(registry: Registry, clock: Clock) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, by="me")).tenant_id
    await registry.register("default", "x", ref_of("a"), by="me")
    await registry.register(acme, "y", ref_of("a"), by="me")
    await registry.delete("default", "x", by="me")
    assert await registry.unused_files() == {}
    assert not await registry.claim_files("a", "w1")
    clock.now_s += 10
    await registry.delete(acme, "y", by="me")
    assert await registry.unused_files() == {"a": UnusedFiles(clock.now_s, frozenset({"default", acme}))}
    assert await registry.claim_files("a", "w1")
    await registry.record_files_removed("a", "w1")
    assert await registry.unused_files() == {}


async def test_those_of_an_older_version_are_unused_too(registry: Registry) -> None:
    for digest in "ab":
        await registry.register("default", "x", ref_of(digest), by="me")
    assert set(await registry.unused_files()) == {"a"}
    await registry.register("default", "x", ref_of("a"), by="me")
    assert set(await registry.unused_files()) == {"b"}


async def test_the_config_files_adapters_keep_no_files_in_the_store(open_registry: OpenRegistry) -> None:
    registry = await open_registry(shared=SharedAdapters({"roman": shared_version("roman", "a")}))
    await registry.register("default", "x", ref_of("a"), by="me")
    assert registry.snapshot.stored_digests() == {"a"} and not await registry.claim_files("a", "w1")
    await registry.delete("default", "x", by="me")
    assert registry.snapshot.digests() == {"a"} and not registry.snapshot.stored_digests()
    assert set(await registry.unused_files()) == {"a"}
    assert await registry.claim_files("a", "w1")


async def test_who_had_what_is_remembered(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me")
    assert await registry.past_owners("a") == frozenset()
    await registry.register("default", "x", ref_of("b"), by="me")
    await registry.delete("default", "x", by="me")
    assert await registry.past_owners("a") == await registry.past_owners("b") == {"default"}
    assert await registry.past_owners("c") == frozenset()


async def test_one_claims_them_at_a_time(registry: Registry, clock: Clock) -> None:
    assert await registry.claim_files("left over", "w1"), "files that nobody knows of may be removed"
    assert await registry.claim_files("left over", "w1"), "who failed may try again at once"
    assert not await registry.claim_files("left over", "w2")
    clock.now_s += CLAIM_S
    assert await registry.claim_files("left over", "w2")
    await registry.record_files_removed("left over", "w1")
    assert set(await registry.unused_files()) == {"left over"}, "they are no longer w1's to remove"
    await registry.record_files_removed("left over", "w2")
    assert await registry.unused_files() == {}


async def test_of_many_who_claim_at_once_one_may(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    claims = await asyncio.gather(*(registries[i % 2].claim_files("a", f"w{i}") for i in range(6)))
    assert sum(claims) == 1


async def test_claimed_files_are_not_built_on(registry: Registry, clock: Clock) -> None:
    assert await registry.claim_files("a", "w1")
    with pytest.raises(Conflict, match="are being removed; try again") as error:
        await registry.register("default", "x", ref_of("a"), by="me")
    assert error.value.retry_after_s
    with pytest.raises(Conflict):
        async with registry.keeping_files("a"):
            pytest.fail("they are going")
    await registry.record_files_removed("a", "w1")
    async with registry.keeping_files("a"):
        await registry.register("default", "x", ref_of("a"), by="me")


async def test_who_died_removing_files_holds_nobody_up_for_long(registry: Registry, clock: Clock) -> None:
    assert await registry.claim_files("a", "w1")
    clock.now_s += CLAIM_S
    await registry.register("default", "x", ref_of("a"), by="me")
    await registry.record_files_removed("a", "w1")
    await registry.delete("default", "x", by="me")
    assert set(await registry.unused_files()) == {"a"}


async def test_files_that_a_registration_relies_on_can_not_be_claimed(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me")
    async with registry.keeping_files("a"):
        await registry.delete("default", "x", by="me")
        assert await registry.unused_files() == {}
        assert not await registry.claim_files("a", "w1")
        async with registry.keeping_files("a"):
            pass
        assert not await registry.claim_files("a", "w1"), "of two who rely on them, one still does"
        await registry.register("default", "y", ref_of("a"), by="me")
    assert not await registry.claim_files("a", "w1")
    await registry.delete("default", "y", by="me")
    assert await registry.claim_files("a", "w1"), "as soon as nobody does"


async def test_files_of_a_registration_that_came_to_nothing_are_unused(registry: Registry, clock: Clock) -> None:
    with pytest.raises(ZeroDivisionError):
        async with registry.keeping_files("a"):
            _ = 1 / 0
    assert set(await registry.unused_files()) == {"a"}


async def test_and_if_its_process_died_after_a_while(registry: Registry, clock: Clock) -> None:
    dead = registry.keeping_files("b")
    await dead.__aenter__()
    assert await registry.unused_files() == {}
    clock.now_s += KEEP_S
    assert set(await registry.unused_files()) == {"b"}
    assert await registry.claim_files("b", "w1")
    await dead.__aexit__(None, None, None)
