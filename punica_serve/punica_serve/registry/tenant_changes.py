"""Changes of tenants and of their keys."""

import secrets
from collections.abc import Mapping

from sqlalchemy import exists, insert, or_, select, update

from punica_serve.errors import Conflict, InvalidRequest, NotFound
from punica_serve.registry.change import Change, upsert
from punica_serve.registry.names import (
    BUILTIN_TENANTS,
    MAX_SHOWN_CHARS,
    check_tenant_name,
    is_tenant_name,
    no_such_tenant,
)
from punica_serve.registry.reading import AnyRow, key_of, tenant_of
from punica_serve.registry.records import ApiKey, Role, Tenant
from punica_serve.registry.snapshot import digest_of
from punica_serve.registry.tables import adapters, grants, keys, tenants

#: Fields of a Tenant and of its TenantQuota, by name.
Terms = Mapping[str, int | bool | None]

#: Of a tenant of which nothing is said.
_NO_LIMITS: Terms = {
    "max_concurrent": None,
    "requests_per_min": None,
    "tokens_per_min": None,
    "max_adapters": None,
    "max_adapter_bytes": None,
    "suspended": False,
}

#: What fits a database's integer.
_MAX_LIMIT = 2**63 - 1
_MAX_KEY_NAME_CHARS = 100
#: The year 10000 begins: no calendar goes on, so `keys list` could not show it.
_MAX_EXPIRES_S = 253_402_300_800.0


async def put_tenant(change: Change, name: str, terms: Terms) -> Tenant:
    """Makes a tenant, or sets all of its terms."""
    return await _set_terms(change, "tenant.put", name, await _live(change, name), terms)


async def patch_tenant(change: Change, name: str, terms: Terms, *, must_exist: bool) -> Tenant:
    """Sets the terms that are named, and no others. Raises NotFound, or makes a tenant that there is not."""
    row = await live_tenant(change, name) if must_exist else await _live(change, name)
    before = {term: row._mapping[term] for term in _NO_LIMITS} if row else _NO_LIMITS
    return await _set_terms(change, "tenant.patch" if row else "tenant.put", name, row, {**before, **terms})


async def _set_terms(change: Change, action: str, name: str, before: AnyRow | None, terms: Terms) -> Tenant:
    """All of them. Where nothing changes, nothing is written: a program may say the same every minute."""
    check_tenant_name(name)
    for param, limit in terms.items():
        if limit is not None and not 0 <= limit <= _MAX_LIMIT:
            message = f"`{param}` is {limit}; it must be from 0 to {_MAX_LIMIT}, or null for no limit"
            raise InvalidRequest(message, param=param)
    if before and all(before._mapping[term] == value for term, value in terms.items()):
        return tenant_of(before)
    created_s = before.created_s if before else change.now_s
    values = {**terms, "created_s": created_s, "is_live": True, "revision": change.revision}
    statement = upsert(change.connection, tenants).values(name=name, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
    await change.log(action, name, name, **terms)
    return tenant_of(await live_tenant(change, name))


async def delete_tenant(change: Change, name: str) -> None:
    """Ends its keys and what was granted to it. Raises Conflict while it has adapters."""
    if name in BUILTIN_TENANTS:
        raise Conflict(f"tenant {name!r} is always there and can't be deleted", param="tenant")
    await live_tenant(change, name)
    if await change.connection.scalar(select(exists().where(adapters.c.tenant == name, adapters.c.is_live))):
        raise Conflict(f"tenant {name!r} has adapters; delete them first", param="tenant")
    ended = {"is_live": False, "revision": change.revision}
    for table, mine in (
        (tenants, tenants.c.name == name),
        (keys, keys.c.tenant == name),
        (grants, or_(grants.c.tenant == name, grants.c.to == name)),
    ):
        await change.connection.execute(update(table).where(mine, table.c.is_live).values(**ended))
    await change.log("tenant.delete", name, name)


async def make_key(change: Change, tenant: str, role: Role, name: str, expires_s: float | None) -> tuple[ApiKey, str]:
    """A key and its secret, which is told here and never again: only its digest is kept."""
    await live_tenant(change, tenant)
    if len(name) > _MAX_KEY_NAME_CHARS or not name.isprintable():
        raise InvalidRequest(f"a key's name has at most {_MAX_KEY_NAME_CHARS} characters, all printable", param="name")
    if expires_s is not None and not change.now_s < expires_s < _MAX_EXPIRES_S:
        raise InvalidRequest("a key must expire in the future and before the year 10000, or never", param="expires_s")
    key_id = secrets.token_hex(6)
    secret = f"ps-{key_id}-{secrets.token_urlsafe(32)}"
    row = {
        "key_id": key_id,
        "secret_sha256": digest_of(secret),
        "tenant": tenant,
        "role": role,
        "name": name,
        "created_s": change.now_s,
        "expires_s": expires_s,
        "is_live": True,
        "revision": change.revision,
    }
    await change.connection.execute(insert(keys).values(**row))
    await change.log("key.make", tenant, key_id, role=role, name=name, expires_s=expires_s)
    return ApiKey(key_id, tenant, role, name, change.now_s, expires_s), secret


async def revoke_key(change: Change, key_id: str) -> ApiKey:
    """Raises NotFound."""
    found = select(keys).where(keys.c.key_id == key_id, keys.c.is_live)
    row = (await change.connection.execute(found)).one_or_none() if key_id.isalnum() else None
    if row is None:
        where = "`punica-serve keys list`, or GET /v1/keys for admins, lists all"
        raise NotFound(f"there is no key {key_id[:MAX_SHOWN_CHARS]!r}; {where}", param="key_id")
    await change.connection.execute(
        update(keys).where(keys.c.key_id == key_id).values(is_live=False, revision=change.revision)
    )
    await change.log("key.revoke", row.tenant, key_id)
    return key_of(row)


async def live_tenant(change: Change, name: str) -> AnyRow:
    """Raises NotFound."""
    row = await _live(change, name)
    if row is None:
        raise no_such_tenant(name)
    return row


async def _live(change: Change, name: str) -> AnyRow | None:
    found = select(tenants).where(tenants.c.name == name, tenants.c.is_live)
    return (await change.connection.execute(found)).one_or_none() if is_tenant_name(name) else None
