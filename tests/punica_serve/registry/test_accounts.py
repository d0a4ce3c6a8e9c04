"""Usage, and the audit log."""

import asyncio
from dataclasses import replace

import pytest

from punica_serve.errors import AdapterLimitReached, AdapterNotFound
from punica_serve.protocol import PromiseCounts
from punica_serve.registry.records import AuditEntry, Usage
from punica_serve.registry.registry import Registry
from registries import NO_QUOTA, Clock, OpenRegistry, ref_of

pytestmark = pytest.mark.anyio

ROW = Usage(7200, "default", "default", "default", "default/x", 1, 1, 10, 4, 20, 0.5)


async def test_usage_adds_up_by_hour_tenant_and_version(registry: Registry) -> None:
    base = replace(ROW, owner_id=None, adapter=None, version=None)
    await registry.add_usage([ROW, base, ROW], source="f1", number=1)
    await registry.add_usage([ROW, replace(ROW, hour_s=10800), replace(ROW, version=2)], source="f1", number=2)
    await registry.add_usage([replace(ROW, tenant_id="shared", tenant="shared")], source="f2", number=1)
    assert await registry.usage("default", 0, 10800) == (
        base,
        replace(ROW, num_requests=3, num_prompt_tokens=30, num_cached_tokens=12, num_generated_tokens=60, gpu_s=1.5),
        replace(ROW, version=2),
    )
    assert await registry.usage("default", 10800, 10801) == (replace(ROW, hour_s=10800),)
    assert {row.tenant for row in await registry.usage(None, 0, 1e9)} == {"default", "shared"}
    assert await registry.usage("nul\0", 0, 1e9) == (), "what no tenant is called never reaches the database"


async def test_promises_add_up_as_usage_does(registry: Registry) -> None:
    row = replace(ROW, promises=PromiseCounts(1, 2, 3, 4))
    await registry.add_usage([row, ROW, row], source="f1", number=1)
    (total,) = await registry.usage("default", 0, 1e9)
    assert total.promises == PromiseCounts(2, 4, 6, 8)


async def test_a_batch_is_counted_once_however_often_it_is_sent(registry: Registry) -> None:
    for number in (1, 1, 2, 1, 2):
        await registry.add_usage([ROW], source="f1", number=number)
    (row,) = await registry.usage("default", 0, 1e9)
    assert row.num_requests == 2


async def test_a_batch_without_rows_adds_none(registry: Registry) -> None:
    await registry.add_usage([], source="f1", number=1)
    assert await registry.usage(None, 0, 100_000) == ()


async def test_frontends_that_add_at_once_lose_nothing(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(3)]
    rows = [replace(ROW, adapter=f"default/{name}") for name in "abcd"]

    async def add(source: int) -> None:
        for number in range(1, 4):
            in_some_order = rows[source:] + rows[:source]
            await registries[source].add_usage(in_some_order, source=f"f{source}", number=number)

    await asyncio.gather(*(add(source) for source in range(3)))
    totals = await registries[0].usage("default", 0, 1e9)
    assert [(row.adapter, row.num_generated_tokens) for row in totals] == [(row.adapter, 9 * 20) for row in rows]


async def test_sources_that_are_long_gone_are_forgotten(registry: Registry, clock: Clock) -> None:
    await registry.add_usage([ROW], source="old", number=1)
    clock.now_s += 8 * 86_400
    await registry.add_usage([ROW], source="new", number=1)
    async with registry._database.reading() as connection:
        sources = (await connection.exec_driver_sql("SELECT source FROM usage_sources")).scalars().all()
    assert sources == ["new"]


async def test_old_usage_is_removed_a_batch_at_a_time(registry: Registry) -> None:
    hours = [replace(ROW, hour_s=3600 * hour, adapter=adapter) for hour in range(4) for adapter in ("a", "b", None)]
    await registry.add_usage(hours, source="f1", number=1)
    removed = [await registry.remove_usage(7200, 4) for _ in range(3)]
    assert removed == [4, 2, 0]
    assert sorted({row.hour_s for row in await registry.usage(None, 0, 1e9)}) == [7200, 10800]


async def test_frontends_that_remove_at_once_remove_each_row_once(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(3)]
    rows = [replace(ROW, hour_s=3600 * hour) for hour in range(20)]
    await registries[0].add_usage(rows, source="f1", number=1)
    removed = await asyncio.gather(*(registry.remove_usage(3600 * 15, 10) for registry in registries))
    assert sorted(removed) == [0, 5, 10]
    assert len(await registries[0].usage(None, 0, 1e9)) == 5


async def test_old_entries_of_the_log_are_removed(registry: Registry, clock: Clock) -> None:
    for name in ("a", "b", "c"):
        await registry.put_tenant(name, NO_QUOTA, by="me")
        clock.now_s += 100
    before_s = clock.now_s - 150  # the third is younger
    assert [await registry.remove_audit(before_s, 1) for _ in range(3)] == [1, 1, 0]
    assert [entry.subject for entry in await registry.audit_log(100)] == ["c"]


async def test_every_change_is_in_the_audit_log(registry: Registry, clock: Clock) -> None:
    await registry.put_tenant("acme", NO_QUOTA, by="root")
    key, _ = await registry.make_key("acme", "user", "laptop", by="root")
    await registry.register("default", "x", ref_of("a"), source_uri="hf://x", by="ann")
    await registry.set_pinned("default", "x", True, by="ann")
    await registry.grant("default", "x", "acme", by="root")
    await registry.revoke("default", "x", "acme", by="root")
    await registry.delete("default", "x", by="ann")
    await registry.revoke_key(key.key_id, by="root")
    await registry.delete_tenant("acme", by="root")
    entries = await registry.audit_log(100)
    assert [(entry.by, entry.action, entry.tenant, entry.subject) for entry in reversed(entries)] == [
        ("root", "tenant.put", "acme", "acme"),
        ("root", "key.make", "acme", key.key_id),
        ("ann", "adapter.register", "default", "x"),
        ("ann", "adapter.pin", "default", "x"),
        ("root", "adapter.grant", "default", "x"),
        ("root", "adapter.revoke", "default", "x"),
        ("ann", "adapter.delete", "default", "x"),
        ("root", "key.revoke", "acme", key.key_id),
        ("root", "tenant.delete", "acme", "acme"),
    ]
    registered = entries[-3]
    detail = {"version": 1, "digest": "a", "source_uri": "hf://x"}
    assert registered == AuditEntry(
        registered.entry_id, clock.now_s, "ann", "adapter.register", "default", "default", "x", detail
    )


async def test_the_log_is_read_in_pages_and_per_tenant(registry: Registry) -> None:
    ids = {name: (await registry.put_tenant(name, NO_QUOTA, by="me")).tenant_id for name in ("a", "b", "c")}
    newest = await registry.audit_log(2)
    assert [entry.subject for entry in newest] == ["c", "b"]
    assert [entry.subject for entry in await registry.audit_log(2, newest[-1].entry_id)] == ["a"]
    assert [entry.subject for entry in await registry.audit_log(2, tenant_id=ids["b"])] == ["b"]


async def test_what_was_not_changed_is_not_in_the_log(registry: Registry) -> None:
    await registry.register("default", "x", ref_of("a"), by="me")
    before = await registry.audit_log(100)
    await registry.register("default", "x", ref_of("a"), by="me")
    await registry.set_pinned("default", "x", False, by="me")
    await registry.revoke("default", "x", "acme", by="me")
    await registry.patch_tenant("default", {"suspended": False}, by="me")
    with pytest.raises(AdapterNotFound):
        await registry.delete("default", "y", by="me")
    assert await registry.audit_log(100) == before


async def test_a_change_that_is_refused_leaves_nothing_behind(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, max_adapter_bytes=10, by="me")).tenant_id
    await registry.register(acme, "x", ref_of("a"), by="me")
    before = (await registry.audit_log(100), registry.snapshot)
    with pytest.raises(AdapterLimitReached):
        await registry.register(acme, "y", ref_of("b", num_bytes=3), by="me")
    assert (await registry.audit_log(100), await registry.refresh()) == before
    assert await registry.unused_files() == {}
