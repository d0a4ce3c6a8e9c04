"""The last key that lets an administrator in ends only where somebody insists."""

import asyncio

import pytest

from punica_serve.errors import LastAdminKey
from punica_serve.registry.records import ApiKey
from punica_serve.registry.registry import Registry
from registries import NO_QUOTA, Clock, OpenRegistry

pytestmark = pytest.mark.anyio


async def admin_key(registry: Registry, tenant: str = "default", expires_s: float | None = None) -> str:
    key, _ = await registry.make_key(tenant, "admin", "", expires_s, by="me")
    return key.key_id


async def test_the_last_is_kept_and_says_what_to_do(registry: Registry) -> None:
    last = await admin_key(registry)
    user, _ = await registry.make_key("default", "user", "", by="me")
    with pytest.raises(LastAdminKey, match=r"is the last admin key: .* create another first"):
        await registry.revoke_key(last, by="me")
    await registry.revoke_key(user.key_id, by="me")
    other = await admin_key(registry)
    await registry.revoke_key(last, by="me")
    await registry.revoke_key(other, force=True, by="me")
    assert registry.snapshot.keys() == ()


async def test_a_key_that_has_expired_is_no_admin_key(registry: Registry, clock: Clock) -> None:
    last, expiring = await admin_key(registry), await admin_key(registry, expires_s=clock.now_s + 10)
    clock.now_s += 10
    with pytest.raises(LastAdminKey):
        await registry.revoke_key(last, by="me")
    await registry.revoke_key(expiring, by="me")


async def test_the_tenant_that_has_it_is_kept_with_it(registry: Registry) -> None:
    await registry.put_tenant("acme", NO_QUOTA, by="me")
    for _ in range(2):
        await admin_key(registry, "acme")
    with pytest.raises(LastAdminKey, match="tenant 'acme' has the last admin key"):
        await registry.delete_tenant("acme", by="me")
    assert len(registry.snapshot.keys("acme")) == 2
    await registry.delete_tenant("acme", force=True, by="me")
    await registry.put_tenant("acme", NO_QUOTA, by="me")
    await registry.delete_tenant("acme", by="me")


async def test_one_of_a_suspended_tenant_counts(registry: Registry) -> None:
    """It lets its administrator in all the same."""
    await registry.put_tenant("acme", NO_QUOTA, suspended=True, by="me")
    await admin_key(registry, "acme")
    await registry.revoke_key(await admin_key(registry), by="me")


async def test_of_two_who_revoke_the_last_two_at_once_one_is_refused(open_registry: OpenRegistry) -> None:
    one, other = await open_registry(), await open_registry()
    for _ in range(4):
        keys = [await admin_key(one) for _ in range(2)]
        outcomes = await asyncio.gather(
            one.revoke_key(keys[0], by="me"), other.revoke_key(keys[1], by="me"), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes if not isinstance(outcome, ApiKey)] == [LastAdminKey]
        (left,) = (await one.refresh()).keys()
        await one.revoke_key(left.key_id, force=True, by="me")
