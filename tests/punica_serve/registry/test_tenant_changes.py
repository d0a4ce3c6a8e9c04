"""Tenants and their keys."""

import asyncio
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from punica_serve.errors import AdapterNotFound, Conflict, InvalidRequest, NotFound
from punica_serve.protocol import NO_SLO, Slo, TenantQuota
from punica_serve.registry.records import ApiKey, Tenant
from punica_serve.registry.registry import Registry
from registries import NO_QUOTA, Clock, OpenRegistry, ref_of

pytestmark = pytest.mark.anyio


async def test_two_tenants_exist_always(registry: Registry) -> None:
    assert [tenant.name for tenant in registry.snapshot.tenants()] == ["default", "shared"]
    for name in ("default", "shared"):
        with pytest.raises(Conflict, match="is built in"):
            await registry.delete_tenant(name, by="me")


async def test_a_tenant_is_made_and_changed(open_registry: OpenRegistry, clock: Clock) -> None:
    one, other = await open_registry(), await open_registry()
    made = await one.put_tenant("acme", TenantQuota(3, 60, 1000), max_adapters=5, max_adapter_bytes=1 << 40, by="me")
    assert made == Tenant(
        made.tenant_id, "acme", TenantQuota(3, 60, 1000), 5, 1 << 40, suspended=False, created_s=clock.now_s
    )
    assert (await other.refresh()).tenant("acme") == made
    clock.now_s += 1
    changed = await one.put_tenant("acme", TenantQuota(requests_per_min=0), suspended=True, by="me")
    assert changed == Tenant(
        made.tenant_id, "acme", TenantQuota(requests_per_min=0), None, None, suspended=True, created_s=made.created_s
    )
    assert (await other.refresh()).tenant("acme") == changed


async def test_a_patch_changes_what_it_names(registry: Registry) -> None:
    with pytest.raises(NotFound, match="there is no tenant 'acme'"):
        await registry.patch_tenant("acme", {"max_adapters": 5}, by="me")
    made = await registry.patch_tenant("acme", {"max_adapters": 5, "max_concurrent": 2}, must_exist=False, by="me")
    assert (made.quota, made.max_adapters, made.suspended) == (TenantQuota(max_concurrent=2), 5, False)
    assert (await registry.audit_log(1))[0].action == "tenant.put"
    changed = await registry.patch_tenant("acme", {"max_adapters": None, "suspended": True}, by="me")
    assert changed == replace(made, max_adapters=None, suspended=True)
    entry = (await registry.audit_log(1))[0]
    assert (entry.action, entry.detail["suspended"], entry.detail["max_concurrent"]) == ("tenant.patch", True, 2)
    with pytest.raises(InvalidRequest, match="`max_adapters` is -1"):
        await registry.patch_tenant("acme", {"max_adapters": -1}, by="me")
    assert registry.snapshot.tenant("acme") == changed


async def test_promises_are_terms_as_limits_are(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    made = await one.put_tenant("acme", NO_QUOTA, slo=Slo(0.5, 0.02), by="me")
    assert made.slo == (await other.refresh()).tenant("acme").slo == Slo(0.5, 0.02)
    changed = await one.patch_tenant("acme", {"slo_first_token_s": None}, by="me")
    assert changed.slo == (await other.refresh()).tenant("acme").slo == Slo(None, 0.02)
    entry = (await one.audit_log(1))[0]
    assert (entry.detail["slo_first_token_s"], entry.detail["slo_time_per_token_s"]) == (None, 0.02)
    whole = await one.patch_tenant("acme", {"slo_first_token_s": 2.0}, by="me")
    assert type(whole.slo.first_token_s) is float
    assert (await one.put_tenant("acme", NO_QUOTA, by="me")).slo == NO_SLO


@pytest.mark.parametrize("seconds", [0, -1, 0.0, math.inf, math.nan, 1e7])
@pytest.mark.parametrize("name", ["slo_first_token_s", "slo_time_per_token_s"])
async def test_what_no_tenant_can_be_promised(registry: Registry, name: str, seconds: float) -> None:
    with pytest.raises(InvalidRequest, match="it must be above 0 and at most") as refused:
        await registry.patch_tenant("default", {name: seconds}, by="me")
    assert refused.value.param == name


async def test_patches_that_come_at_once_lose_nothing(open_registry: OpenRegistry) -> None:
    registries = [await open_registry() for _ in range(2)]
    await registries[0].put_tenant("acme", NO_QUOTA, by="me")
    names = ("max_concurrent", "requests_per_min", "tokens_per_min", "max_adapters")
    await asyncio.gather(
        *(registries[i % 2].patch_tenant("acme", {name: i + 1}, by="me") for i, name in enumerate(names))
    )
    tenant = (await registries[0].refresh()).tenant("acme")
    assert (tenant.quota, tenant.max_adapters) == (TenantQuota(1, 2, 3), 4)


async def test_what_no_tenant_can_be(registry: Registry) -> None:
    for name, limit in (("Acme", 1), ("", 1), ("a/b", 1), ("a\0b", 1), ("acme", -1), ("acme", 2**63)):
        with pytest.raises(InvalidRequest):
            await registry.put_tenant(name, NO_QUOTA, max_adapters=limit, by="me")
    assert len(registry.snapshot.tenants()) == 2


async def test_a_tenant_that_is_deleted_takes_its_keys_and_grants_along(registry: Registry) -> None:
    acme = (await registry.put_tenant("acme", NO_QUOTA, by="me")).tenant_id
    _, secret = await registry.make_key("acme", "user", "laptop", by="me")
    await registry.register("default", "x", ref_of("a"), by="me")
    await registry.grant("default", "x", "acme", by="me")
    await registry.register(acme, "y", ref_of("b"), by="me")
    with pytest.raises(Conflict, match="has adapters; delete them first"):
        await registry.delete_tenant("acme", by="me")
    await registry.delete(acme, "y", by="me")
    await registry.delete_tenant("acme", by="me")
    assert await registry.key_of(secret) is None
    assert registry.snapshot.grants() == ()
    later = await registry.put_tenant("acme", NO_QUOTA, by="me")
    assert await registry.key_of(secret) is None
    with pytest.raises(AdapterNotFound):
        registry.snapshot.adapter(later.tenant_id, "x")


async def test_of_a_tenant_that_there_is_not_nothing_can_be_had(registry: Registry) -> None:
    for name in ("nobody", "No\0body", ""):
        with pytest.raises(InvalidRequest):
            await registry.delete_tenant(name, by="me")
        with pytest.raises(InvalidRequest):
            await registry.make_key(name, "user", "laptop", by="me")


async def test_a_key_is_told_once_and_only_its_digest_kept(open_registry: OpenRegistry, clock: Clock) -> None:
    one, other = await open_registry(), await open_registry()
    key, secret = await one.make_key("default", "admin", "laptop", by="me")
    assert re.fullmatch(rf"ps-{key.key_id}-[A-Za-z0-9_-]{{43}}", secret)
    assert key == ApiKey(key.key_id, "default", "default", "admin", "laptop", clock.now_s, None)
    assert await other.key_of(secret) == key, "a key works at once, everywhere"
    async with one._database.reading() as connection:
        rows = (await connection.exec_driver_sql("SELECT * FROM keys")).all()
        entries = (await connection.exec_driver_sql("SELECT * FROM audit")).all()
    random_part = secret.removeprefix(f"ps-{key.key_id}-")
    assert random_part not in f"{rows} {entries}"


async def test_a_key_ends_when_it_expires_or_is_revoked(open_registry: OpenRegistry, clock: Clock) -> None:
    one, other = await open_registry(), await open_registry()
    _, passing = await one.make_key("default", "user", "short", clock.now_s + 10, by="me")
    key, revoked = await one.make_key("default", "user", "long", by="me")
    assert await other.key_of(passing) and await other.key_of(revoked)
    clock.now_s += 10
    assert await one.revoke_key(key.key_id, by="me") == key
    await other.refresh()
    for registry in (one, other):
        assert await registry.key_of(passing) is None
        assert await registry.key_of(revoked) is None


async def test_a_key_that_there_is_not_can_not_be_revoked(registry: Registry) -> None:
    for key_id in ("nothing", "a\0b", ""):
        with pytest.raises(InvalidRequest, match="there is no key"):
            await registry.revoke_key(key_id, by="me")


async def test_what_no_key_can_be(registry: Registry) -> None:
    for name in ("a\nb", "a" * 101, "\ud800"):
        with pytest.raises(InvalidRequest):
            await registry.make_key("default", "user", name, by="me")
    for expires_s in (0.0, datetime.max.replace(tzinfo=UTC).timestamp() + 1, 1e300, float("inf")):
        with pytest.raises(InvalidRequest, match="must expire in the future and before the year 10000, or never"):
            await registry.make_key("default", "user", "x", expires_s, by="me")
    assert registry.snapshot.keys() == ()
