"""Changes of tenants and of their keys."""

import secrets
from collections.abc import Mapping

from sqlalchemy import ColumnElement, and_, exists, func, insert, or_, select, update

from punica_serve.errors import Conflict, InvalidRequest, LastAdminKey, NotFound
from punica_serve.numbers import MAX_INT64
from punica_serve.protocol import PROMISE_RANGE
from punica_serve.registry.change import Change
from punica_serve.registry.names import (
    BUILTIN_TENANTS,
    MAX_SHOWN_CHARS,
    check_tenant_name,
    is_tenant_id,
    is_tenant_name,
    no_such_tenant,
    tenant_is_gone,
)
from punica_serve.registry.reading import AnyRow, key_of, tenant_of, with_tenant
from punica_serve.registry.records import ApiKey, Role, Tenant
from punica_serve.registry.snapshot import digest_of
from punica_serve.registry.tables import adapters, grants, keys, tenants

#: Fields of a Tenant, of its TenantQuota and, after "slo_", of its Slo, by name.
Terms = Mapping[str, float | bool | None]

#: The terms of a tenant for which none are given.
_NO_LIMITS: Terms = {
    "max_concurrent": None,
    "requests_per_min": None,
    "tokens_per_min": None,
    "max_adapters": None,
    "max_adapter_bytes": None,
    "suspended": False,
    "slo_first_token_s": None,
    "slo_time_per_token_s": None,
}
_PROMISES = frozenset({"slo_first_token_s", "slo_time_per_token_s"})

_MAX_KEY_NAME_CHARS = 100
#: Size of a tenant's id. Random, so that no id repeats, even if the database was restored from an old backup.
_ID_BYTES = 8
#: The start of the year 10000: calendars end there, so `keys list` could not show later dates.
_MAX_EXPIRES_S = 253_402_300_800.0


async def put_tenant(change: Change, name: str, terms: Terms) -> Tenant:
    """Creates a tenant, or replaces all of its terms."""
    return await _set_terms(change, "tenant.put", name, await _live(change, name), terms)


async def patch_tenant(change: Change, name: str, terms: Terms, *, must_exist: bool) -> Tenant:
    """Changes only the given terms. For an unknown name raises NotFound, or creates the tenant."""
    row = await live_tenant(change, name) if must_exist else await _live(change, name)
    before = {term: row._mapping[term] for term in _NO_LIMITS} if row else _NO_LIMITS
    return await _set_terms(change, "tenant.patch" if row else "tenant.put", name, row, {**before, **terms})


async def _set_terms(change: Change, action: str, name: str, before: AnyRow | None, terms: Terms) -> Tenant:
    """Sets all terms. Writes nothing if nothing changes: a program may repeat the call every minute."""
    check_tenant_name(name)
    for param, value in terms.items():
        if value is not None:
            _check_term(param, value)
    if before and all(before._mapping[term] == value for term, value in terms.items()):
        return tenant_of(before)
    values = {**terms, "revision": change.revision}
    if before:
        mine = tenants.c.tenant_id == before.tenant_id
        written = await change.connection.execute(update(tenants).where(mine).values(**values).returning(tenants))
    else:
        about = {"tenant_id": secrets.token_hex(_ID_BYTES), "name": name, "created_s": change.now_s, "is_live": True}
        written = await change.connection.execute(insert(tenants).values(**values, **about).returning(tenants))
    tenant = tenant_of(written.one())
    await change.log(action, tenant.tenant_id, name, **terms)
    return tenant


def _check_term(param: str, value: float) -> None:
    """Raises InvalidRequest for a limit or a promise that is out of range."""
    if param in _PROMISES:
        if not PROMISE_RANGE.holds(value):
            raise InvalidRequest(f"`{param}` is {value}; it must be {PROMISE_RANGE}, or null for none", param=param)
    elif not 0 <= value <= MAX_INT64:
        message = f"`{param}` is {value}; it must be from 0 to {MAX_INT64}, or null for no limit"
        raise InvalidRequest(message, param=param)


async def delete_tenant(change: Change, name: str, *, force: bool) -> Tenant:
    """Ends the tenant with its keys and the grants to it. Raises Conflict while it has adapters, and LastAdminKey."""
    if name in BUILTIN_TENANTS:
        raise Conflict(f"tenant {name!r} is built in and can't be deleted", param="tenant")
    tenant = tenant_of(await live_tenant(change, name))
    tenant_id = tenant.tenant_id
    if await change.connection.scalar(select(exists().where(adapters.c.tenant_id == tenant_id, adapters.c.is_live))):
        raise Conflict(f"tenant {name!r} has adapters; delete them first", param="tenant")
    if not force:
        await check_admin_stays(change, keys.c.tenant_id == tenant_id, f"tenant {name!r} has the last admin key")
    ended = {"is_live": False, "revision": change.revision}
    for table, mine in (
        (tenants, tenants.c.tenant_id == tenant_id),
        (keys, keys.c.tenant_id == tenant_id),
        (grants, or_(grants.c.tenant_id == tenant_id, grants.c.to_id == tenant_id)),
    ):
        await change.connection.execute(update(table).where(mine, table.c.is_live).values(**ended))
    await change.log("tenant.delete", tenant_id, name)
    return tenant


async def make_key(change: Change, tenant: str, role: Role, name: str, expires_s: float | None) -> tuple[ApiKey, str]:
    """Creates a key and returns it with its secret, of which only the digest is stored."""
    owner = await live_tenant(change, tenant)
    if len(name) > _MAX_KEY_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(
            f"a key's name must have at most {_MAX_KEY_NAME_CHARS} characters, all printable", param="name"
        )
    if expires_s is not None and not change.now_s < expires_s < _MAX_EXPIRES_S:
        raise InvalidRequest("a key must expire in the future and before the year 10000, or never", param="expires_s")
    key_id = secrets.token_hex(6)
    secret = f"ps-{key_id}-{secrets.token_urlsafe(32)}"
    row = {
        "key_id": key_id,
        "secret_sha256": digest_of(secret),
        "tenant_id": owner.tenant_id,
        "role": role,
        "name": name,
        "created_s": change.now_s,
        "expires_s": expires_s,
        "is_live": True,
        "revision": change.revision,
    }
    await change.connection.execute(insert(keys).values(**row))
    await change.log("key.make", owner.tenant_id, key_id, role=role, name=name, expires_s=expires_s)
    return ApiKey(key_id, owner.tenant_id, tenant, role, name, change.now_s, expires_s), secret


async def revoke_key(change: Change, key_id: str, *, force: bool) -> ApiKey:
    """Ends a key. Raises NotFound, and LastAdminKey unless ``force``."""
    found = with_tenant(keys).where(keys.c.key_id == key_id, keys.c.is_live)
    row = (await change.connection.execute(found)).one_or_none() if key_id.isalnum() else None
    if row is None:
        where = "list them with `punica-serve keys list`, or as an administrator with GET /v1/keys"
        raise NotFound(f"there is no key {key_id[:MAX_SHOWN_CHARS]!r}; {where}", param="key_id")
    if not force:
        await check_admin_stays(change, keys.c.key_id == key_id, f"key {key_id!r} is the last admin key")
    await change.connection.execute(
        update(keys).where(keys.c.key_id == key_id).values(is_live=False, revision=change.revision)
    )
    await change.log("key.revoke", row.tenant_id, key_id)
    return key_of(row)


async def check_admin_stays(change: Change, ending: ColumnElement[bool], what: str) -> None:
    """Raises LastAdminKey if ending the ``ending`` keys would leave no valid admin key.

    Changes are made one at a time, so two that each end one of the last two keys can't both pass.
    """
    lets_in = and_(
        keys.c.role == "admin", keys.c.is_live, or_(keys.c.expires_s.is_(None), keys.c.expires_s > change.now_s)
    )
    num_ending = func.count().filter(ending)
    count, ended = (await change.connection.execute(select(func.count(), num_ending).where(lets_in))).one()
    if ended and ended == count:
        raise LastAdminKey(
            f"{what}: without it nobody could change tenants, keys or quotas over the API; create another first"
            " (`punica-serve keys create --role admin`, or POST /v1/keys), or insist with `force=true` (`--force`)",
            param="force",
        )


async def live_tenant(change: Change, name: str) -> AnyRow:
    """The tenant of this name. Raises NotFound."""
    row = await _live(change, name)
    if row is None:
        raise no_such_tenant(name)
    return row


async def live_owner(change: Change, tenant_id: str) -> AnyRow:
    """The tenant of this id. Raises NotFound."""
    found = select(tenants).where(tenants.c.tenant_id == tenant_id, tenants.c.is_live)
    row = (await change.connection.execute(found)).one_or_none() if is_tenant_id(tenant_id) else None
    if row is None:
        raise tenant_is_gone()
    return row


async def _live(change: Change, name: str) -> AnyRow | None:
    found = select(tenants).where(tenants.c.name == name, tenants.c.is_live)
    return (await change.connection.execute(found)).one_or_none() if is_tenant_name(name) else None
