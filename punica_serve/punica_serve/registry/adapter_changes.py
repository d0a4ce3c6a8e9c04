"""Changes of adapters, and of the grants to use them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update

from punica_serve.errors import AdapterNotFound, Conflict, InvalidRequest
from punica_serve.protocol import AdapterRef
from punica_serve.registry.adapter_limits import check_room
from punica_serve.registry.change import Change, upsert
from punica_serve.registry.files import end_use, use_files
from punica_serve.registry.names import (
    MAX_SHOWN_CHARS,
    SHARED_TENANT,
    check_adapter_name,
    check_tenant_name,
    check_text,
    full_name,
    is_adapter_name,
)
from punica_serve.registry.reading import AnyRow, adapter_of, tenant_of, with_tenant
from punica_serve.registry.records import AdapterVersion, Grant, ServedBase
from punica_serve.registry.tables import adapters, grants, tenants
from punica_serve.registry.tenant_changes import live_owner, live_tenant

#: Rows kept of each name's ended versions; the audit log keeps all.
_KEPT_VERSIONS = 100


async def register(
    change: Change,
    tenant_id: str,
    name: str,
    ref: AdapterRef,
    *,
    source_uri: str | None,
    base_model: str | None,
    chat_template: str | None,
    registered_for: ServedBase | None,
    must_be_new: bool,
) -> tuple[AdapterVersion, bool]:
    """Registers the next version of a name, which is served from now on. Equal bytes don't make a new version.

    Returns the served version, and whether it is a new one.
    """
    check_adapter_name(name)
    for param, text in (("uri", source_uri), ("base_model", base_model), ("chat_template", chat_template)):
        check_text(text, param)
    owner = tenant_of(await live_owner(change, tenant_id))
    last = await _newest(change, tenant_id, name)
    current = adapter_of(last) if last and last.is_live else None
    if current and must_be_new:
        raise Conflict(f"an adapter named {name!r} exists already; delete it, or choose another name", param="name")
    description = _description(ref, source_uri, base_model, chat_template, registered_for)
    if current and current.ref.digest == ref.digest:
        return await _describe(change, current, description), False
    await check_room(change, owner, ref.num_bytes, current)
    await use_files(change, ref.digest)
    await _end(change, [current] if current else [])
    version = (last.version if last else 0) + 1
    row = {
        "tenant_id": tenant_id,
        "name": name,
        "version": version,
        "digest": ref.digest,
        "num_bytes": ref.num_bytes,
        "ranks": ref.ranks,
        "pinned": current is not None and current.pinned,
        "created_s": change.now_s,
        "is_live": True,
        "revision": change.revision,
    }
    await change.connection.execute(insert(adapters).values(**row, **description))
    await _prune(change, tenant_id, name, version)
    await change.log("adapter.register", tenant_id, name, version=version, digest=ref.digest, source_uri=source_uri)
    return await _current(change, tenant_id, name), True


async def delete_adapter(change: Change, tenant_id: str, name: str) -> tuple[AdapterVersion, ...]:
    """Ends the adapter and all grants of it. Raises AdapterNotFound, and NotFound for a deleted tenant."""
    current = await _current(change, tenant_id, name)
    await _end(change, [current])
    await change.connection.execute(
        update(grants)
        .where(grants.c.tenant_id == tenant_id, grants.c.name == name, grants.c.is_live)
        .values(is_live=False, revision=change.revision)
    )
    await change.log("adapter.delete", tenant_id, name, version=current.version, digest=current.ref.digest)
    return (current,)


async def set_pinned(change: Change, tenant_id: str, name: str, pinned: bool) -> AdapterVersion:
    """Pins or unpins the adapter. Raises AdapterNotFound, and NotFound for a deleted tenant."""
    current = await _current(change, tenant_id, name)
    if current.pinned != pinned:
        await _update(change, current, {"pinned": pinned})
        await change.log("adapter.pin" if pinned else "adapter.unpin", tenant_id, name)
    return await _current(change, tenant_id, name)


async def grant(change: Change, tenant: str, name: str, to: str) -> Grant:
    """Grants a tenant the use of an adapter; both tenants are given by name. Raises AdapterNotFound, and InvalidRequest
    if the tenant does not exist or needs no grant.
    """
    owner = await live_tenant(change, tenant)
    await _current(change, owner.tenant_id, name)
    if SHARED_TENANT in (tenant, to) or tenant == to:
        raise InvalidRequest(
            f"tenant {to!r} needs no grant of {full_name(tenant, name)}: it may already use it", param="to"
        )
    receiver = await live_tenant(change, to)
    row = {"tenant_id": owner.tenant_id, "name": name, "to_id": receiver.tenant_id}
    values = {"is_live": True, "revision": change.revision}
    statement = upsert(change.connection.dialect.name, grants).values(**row, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=list(row), set_=values))
    await change.log("adapter.grant", owner.tenant_id, name, to=to, to_id=receiver.tenant_id)
    return Grant(**row)


async def revoke(change: Change, tenant: str, name: str, to: str) -> None:
    """Revokes a grant; tenants are given by name. Does nothing if there is no such grant."""
    check_tenant_name(tenant)
    check_adapter_name(name)
    check_tenant_name(to)
    owner_id, to_id = (
        select(tenants.c.tenant_id).where(tenants.c.name == each, tenants.c.is_live).scalar_subquery()
        for each in (tenant, to)
    )
    ended = update(grants).where(
        grants.c.tenant_id == owner_id, grants.c.name == name, grants.c.to_id == to_id, grants.c.is_live
    )
    ended = ended.values(is_live=False, revision=change.revision).returning(grants)
    if row := (await change.connection.execute(ended)).one_or_none():
        await change.log("adapter.revoke", row.tenant_id, name, to=to, to_id=row.to_id)


async def _newest(change: Change, tenant_id: str, name: str) -> AnyRow | None:
    """The newest version, whether it is still served or not."""
    if not is_adapter_name(name):
        return None
    mine = with_tenant(adapters).where(adapters.c.tenant_id == tenant_id, adapters.c.name == name)
    newest = mine.order_by(adapters.c.version.desc()).limit(1)
    row: AnyRow | None = (await change.connection.execute(newest)).one_or_none()
    return row


async def _current(change: Change, tenant_id: str, name: str) -> AdapterVersion:
    owner = await live_owner(change, tenant_id)
    row = await _newest(change, tenant_id, name)
    if row is None or not row.is_live:
        raise AdapterNotFound(f"tenant {owner.name!r} has no adapter {name[:MAX_SHOWN_CHARS]!r}", param="name")
    return adapter_of(row)


async def _describe(change: Change, current: AdapterVersion, description: dict[str, Any]) -> AdapterVersion:
    """Updates an adapter's description, when the same bytes are registered again."""
    known = _description(
        current.ref, current.source_uri, current.base_model, current.chat_template, current.registered_for
    )
    if description == known:
        return current
    await _update(change, current, description)
    await change.log("adapter.describe", current.tenant_id, current.name, source_uri=description["source_uri"])
    return await _current(change, current.tenant_id, current.name)


def _description(
    ref: AdapterRef,
    source_uri: str | None,
    base_model: str | None,
    chat_template: str | None,
    registered_for: ServedBase | None,
) -> dict[str, Any]:
    """The columns that may change while the bytes stay the same."""
    return {
        "uri": ref.uri,
        "scalings": list(ref.scalings),
        "invocation": list(ref.invocation),
        "source_uri": source_uri,
        "base_model": base_model,
        "chat_template": chat_template,
        "base_name": registered_for.name if registered_for else None,
        "base_shape": registered_for.shape if registered_for else None,
    }


async def _update(change: Change, current: AdapterVersion, values: dict[str, Any]) -> None:
    await change.connection.execute(
        update(adapters)
        .where(
            adapters.c.tenant_id == current.tenant_id,
            adapters.c.name == current.name,
            adapters.c.version == current.version,
        )
        .values(**values, revision=change.revision)
    )


async def _end(change: Change, versions: Sequence[AdapterVersion]) -> None:
    for version in versions:
        await _update(change, version, {"is_live": False})
        await end_use(change, version.ref.digest)


async def _prune(change: Change, tenant_id: str, name: str, newest: int) -> None:
    """Removes old rows, so that registering a name again and again does not fill the table. Followers don't need them:
    a newer version is served.
    """
    await change.connection.execute(
        delete(adapters).where(
            adapters.c.tenant_id == tenant_id,
            adapters.c.name == name,
            adapters.c.version <= newest - _KEPT_VERSIONS,
        )
    )
