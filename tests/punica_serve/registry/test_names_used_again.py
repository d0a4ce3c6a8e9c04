"""A tenant is deleted and another made under its name: nothing of the first is the second's."""

from dataclasses import replace

import pytest

from punica_serve.errors import AdapterNotFound, NotFound
from punica_serve.registry.records import Tenant, Usage
from punica_serve.registry.registry import Registry
from registries import NO_QUOTA, OpenRegistry, ref_of

pytestmark = pytest.mark.anyio


async def make(registry: Registry, name: str = "acme") -> Tenant:
    return await registry.put_tenant(name, NO_QUOTA, by="me")


def used(tenant: Tenant, owner: Tenant | None = None, *, num_requests: int = 1) -> Usage:
    base = Usage(7200, tenant.tenant_id, tenant.name, None, None, None, num_requests, 10, 4, 20, 0.5)
    return replace(base, owner_id=owner.tenant_id, adapter=f"{owner.name}/x", version=1) if owner else base


async def test_a_name_used_again_has_an_id_of_its_own(registry: Registry) -> None:
    ids = []
    for _ in range(3):
        ids.append((await make(registry)).tenant_id)
        gone = await registry.delete_tenant("acme", by="me")
        assert gone.tenant_id == ids[-1]
    assert len(set(ids)) == 3
    with pytest.raises(NotFound, match="the tenant was deleted"):
        registry.snapshot.tenant_of(ids[0])


async def test_the_bill_of_the_first_is_not_the_second_s(registry: Registry) -> None:
    first = await make(registry)
    await registry.add_usage([used(first)], source="f1", number=1)
    await registry.delete_tenant("acme", by="me")
    second = await make(registry)
    assert await registry.usage(second.tenant_id, 0, 1e9) == ()
    late = used(first, num_requests=2)  # it ran, and was written, after the deletion
    await registry.add_usage([late, used(second)], source="f1", number=2)
    (of_first,) = await registry.usage(first.tenant_id, 0, 1e9)
    assert (of_first.tenant, of_first.num_requests) == ("acme", 3)
    assert await registry.usage(second.tenant_id, 0, 1e9) == (used(second),)
    assert len(await registry.usage(None, 0, 1e9)) == 2, "administrators read both"


async def test_others_usage_of_its_adapters_is_told_apart_too(registry: Registry) -> None:
    first, user = await make(registry), await make(registry, "bolt")
    await registry.add_usage([used(user, first)], source="f1", number=1)
    await registry.delete_tenant("acme", by="me")
    second = await make(registry)
    await registry.add_usage([used(user, second)], source="f1", number=2)
    rows = await registry.usage(user.tenant_id, 0, 1e9)
    assert {(row.owner_id, row.adapter, row.num_requests) for row in rows} == {
        (first.tenant_id, "acme/x", 1),
        (second.tenant_id, "acme/x", 1),
    }


async def test_the_audit_log_of_the_first_is_not_the_second_s(registry: Registry) -> None:
    first = await make(registry)
    await registry.register(first.tenant_id, "secret-project", ref_of("a"), by="me")
    await registry.delete(first.tenant_id, "secret-project", by="me")
    await registry.delete_tenant("acme", by="me")
    second = await make(registry)
    assert [entry.action for entry in await registry.audit_log(9, tenant_id=second.tenant_id)] == ["tenant.put"]
    entries = await registry.audit_log(9, tenant_id=first.tenant_id)
    assert [entry.action for entry in entries] == [
        "tenant.delete",
        "adapter.delete",
        "adapter.register",
        "tenant.put",
    ]
    assert {entry.tenant for entry in entries} == {"acme"}


async def test_nor_are_its_versions_its_digests_or_what_was_granted(registry: Registry) -> None:
    first = await make(registry)
    await registry.register(first.tenant_id, "x", ref_of("a"), by="me")
    await registry.register("default", "y", ref_of("b"), by="me")
    await registry.grant("default", "y", "acme", by="me")
    await registry.delete(first.tenant_id, "x", by="me")
    await registry.delete_tenant("acme", by="me")
    second = await make(registry)
    assert await registry.versions(second.tenant_id, "x") == ()
    assert await registry.past_owners("a") == {first.tenant_id}
    assert (await registry.unused_files())["a"].tenant_ids == {first.tenant_id}
    with pytest.raises(AdapterNotFound):
        registry.snapshot.adapter(second.tenant_id, "default/y")
    made, _ = await registry.register(second.tenant_id, "x", ref_of("c"), by="me")
    assert made.version == 1
    await registry.grant("default", "y", "acme", by="me")
    assert registry.snapshot.adapter(second.tenant_id, "y").full_name == "default/y"
    with pytest.raises(AdapterNotFound):
        registry.snapshot.adapter(first.tenant_id, "default/y")


async def test_followers_that_missed_the_change_see_the_second_alone(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    first = await make(one)
    for digest in "abc":
        await one.register(first.tenant_id, "x", ref_of(digest), by="me")
    await other.refresh()
    await one.delete(first.tenant_id, "x", by="me")
    await one.delete_tenant("acme", by="me")
    second = await make(one)
    made, _ = await one.register(second.tenant_id, "x", ref_of("d"), by="me")
    snapshot = await other.refresh()
    assert snapshot == one.snapshot == (await open_registry()).snapshot
    assert snapshot.tenant("acme") == second
    assert snapshot.adapter(second.tenant_id, "x") == made and made.version == 1
    with pytest.raises(AdapterNotFound):
        snapshot.adapter(first.tenant_id, "x")


async def test_whoever_came_as_the_first_changes_nothing_of_the_second(registry: Registry) -> None:
    first = await make(registry)
    await registry.delete_tenant("acme", by="me")
    second = await make(registry)
    made, _ = await registry.register(second.tenant_id, "x", ref_of("a"), by="me")
    for change in (
        registry.register(first.tenant_id, "x", ref_of("b"), by="me"),
        registry.delete(first.tenant_id, "x", by="me"),
        registry.set_pinned(first.tenant_id, "x", True, by="me"),
    ):
        with pytest.raises(NotFound, match="the tenant was deleted"):
            await change
    assert registry.snapshot.adapter(second.tenant_id, "x") == made
