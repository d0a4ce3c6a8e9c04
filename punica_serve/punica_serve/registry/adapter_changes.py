"""Changes of adapters and of who may use them."""

from collections.abc import Sequence

from sqlalchemy import delete, func, insert, select, update

from punica_serve.counted import counted
from punica_serve.errors import AdapterNotFound, Conflict, Forbidden, InvalidRequest, QuotaExceeded
from punica_serve.protocol import AdapterRef
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
from punica_serve.registry.reading import AnyRow, adapter_of, tenant_of
from punica_serve.registry.records import AdapterVersion, Tenant
from punica_serve.registry.tables import adapters, grants
from punica_serve.registry.tenant_changes import live_tenant

#: Rows of versions that ended, of each name; the audit log remembers all.
_KEPT_VERSIONS = 100
#: A tenant that is full stays so until it deletes something: soon enough to try again.
_FULL_RETRY_S = 60.0


async def register(
    change: Change,
    tenant: str,
    name: str,
    ref: AdapterRef,
    *,
    source_uri: str | None,
    base_model: str | None,
    chat_template: str | None,
    must_be_new: bool,
) -> AdapterVersion:
    """The next version of a name, which is served from now on. The same bytes again are no new version."""
    check_adapter_name(name)
    for param, text in (("uri", source_uri), ("base_model", base_model), ("chat_template", chat_template)):
        check_text(text, param)
    owner = tenant_of(await live_tenant(change, tenant))
    last = await _newest(change, tenant, name)
    current = adapter_of(last) if last and last.is_live else None
    if current and must_be_new:
        raise Conflict(f"an adapter is called {name!r} already; delete it, or choose another name", param="name")
    about = {"uri": ref.uri, "source_uri": source_uri, "base_model": base_model, "chat_template": chat_template}
    if current and current.ref.digest == ref.digest:
        return await _describe(change, current, about)
    await _check_room(change, owner, ref.num_bytes, current)
    await use_files(change, ref.digest)
    await _end(change, [current] if current else [])
    version = (last.version if last else 0) + 1
    row = {
        "tenant": tenant,
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
    made = (await change.connection.execute(insert(adapters).values(**row, **about).returning(adapters))).one()
    await _prune(change, tenant, name, version)
    await change.log("adapter.register", tenant, name, version=version, digest=ref.digest, source_uri=source_uri)
    return adapter_of(made)


async def delete_adapter(change: Change, tenant: str, name: str) -> tuple[AdapterVersion, ...]:
    """Ends it, and whatever was granted of it. Raises AdapterNotFound."""
    current = await _current(change, tenant, name)
    await _end(change, [current])
    await change.connection.execute(
        update(grants)
        .where(grants.c.tenant == tenant, grants.c.name == name, grants.c.is_live)
        .values(is_live=False, revision=change.revision)
    )
    await change.log("adapter.delete", tenant, name, version=current.version, digest=current.ref.digest)
    return (current,)


async def set_pinned(change: Change, tenant: str, name: str, pinned: bool) -> AdapterVersion:
    """Raises AdapterNotFound."""
    current = await _current(change, tenant, name)
    if current.pinned != pinned:
        await _update(change, current, {"pinned": pinned})
        await change.log("adapter.pin" if pinned else "adapter.unpin", tenant, name)
    return await _current(change, tenant, name)


async def grant(change: Change, tenant: str, name: str, to: str) -> None:
    """Raises AdapterNotFound, and InvalidRequest for a tenant that has it anyway or does not exist."""
    await _current(change, tenant, name)
    if SHARED_TENANT in (tenant, to) or tenant == to:
        raise InvalidRequest(f"tenant {to!r} needs no grant of {full_name(tenant, name)}: it may use it", param="to")
    await live_tenant(change, to)
    row = {"tenant": tenant, "name": name, "to": to}
    values = {"is_live": True, "revision": change.revision}
    statement = upsert(change.connection, grants).values(**row, **values)
    await change.connection.execute(statement.on_conflict_do_update(index_elements=list(row), set_=values))
    await change.log("adapter.grant", tenant, name, to=to)


async def revoke(change: Change, tenant: str, name: str, to: str) -> None:
    """What is not granted may be revoked too."""
    check_tenant_name(tenant)
    check_adapter_name(name)
    check_tenant_name(to)
    ended = await change.connection.execute(
        update(grants)
        .where(grants.c.tenant == tenant, grants.c.name == name, grants.c.to == to, grants.c.is_live)
        .values(is_live=False, revision=change.revision)
    )
    if ended.rowcount:
        await change.log("adapter.revoke", tenant, name, to=to)


async def _newest(change: Change, tenant: str, name: str) -> AnyRow | None:
    """Whether it is still served or not."""
    if not is_adapter_name(name):
        return None
    mine = select(adapters).where(adapters.c.tenant == tenant, adapters.c.name == name)
    return (await change.connection.execute(mine.order_by(adapters.c.version.desc()).limit(1))).one_or_none()


async def _current(change: Change, tenant: str, name: str) -> AdapterVersion:
    await live_tenant(change, tenant)
    row = await _newest(change, tenant, name)
    if row is None or not row.is_live:
        raise AdapterNotFound(f"tenant {tenant!r} has no adapter {name[:MAX_SHOWN_CHARS]!r}", param="name")
    return adapter_of(row)


async def _describe(change: Change, current: AdapterVersion, about: dict[str, str | None]) -> AdapterVersion:
    """The bytes are the same; what is said about them may be new."""
    known = {
        "uri": current.ref.uri,
        "source_uri": current.source_uri,
        "base_model": current.base_model,
        "chat_template": current.chat_template,
    }
    if about == known:
        return current
    await _update(change, current, about)
    await change.log("adapter.describe", current.tenant, current.name, source_uri=about["source_uri"])
    return await _current(change, current.tenant, current.name)


async def _update(change: Change, current: AdapterVersion, values: dict[str, str | None] | dict[str, bool]) -> None:
    await change.connection.execute(
        update(adapters)
        .where(
            adapters.c.tenant == current.tenant,
            adapters.c.name == current.name,
            adapters.c.version == current.version,
        )
        .values(**values, revision=change.revision)
    )


async def _end(change: Change, versions: Sequence[AdapterVersion]) -> None:
    for version in versions:
        await _update(change, version, {"is_live": False})
        await end_use(change, version.ref.digest)


async def _check_room(change: Change, owner: Tenant, num_bytes: int, replaced: AdapterVersion | None) -> None:
    """Raises QuotaExceeded. Nobody else registers meanwhile, so the limits hold exactly."""
    _check_can_fit(owner, num_bytes)
    mine = select(func.count(), func.coalesce(func.sum(adapters.c.num_bytes), 0)).where(
        adapters.c.tenant == owner.name, adapters.c.is_live
    )
    count, total_bytes = (await change.connection.execute(mine)).one()
    total_bytes += num_bytes - (replaced.ref.num_bytes if replaced else 0)
    if owner.max_adapters is not None and replaced is None and count >= owner.max_adapters:
        most = counted(owner.max_adapters, "adapter")
        raise QuotaExceeded(
            f"tenant {owner.name!r} may have {most} and has {count}; delete one first",
            param="name",
            retry_after_s=_FULL_RETRY_S,
        )
    max_bytes = owner.max_adapter_bytes
    if max_bytes is not None and total_bytes > max_bytes:
        raise QuotaExceeded(
            f"the adapters of tenant {owner.name!r} may have {max_bytes} bytes together, and would have {total_bytes};"
            " delete some first",
            param="name",
            retry_after_s=_FULL_RETRY_S,
        )


def _check_can_fit(owner: Tenant, num_bytes: int) -> None:
    """Raises Forbidden for a tenant that may have no adapters, and InvalidRequest for one that would not fit alone."""
    for quota, limit in (("max_adapters", owner.max_adapters), ("max_adapter_bytes", owner.max_adapter_bytes)):
        if limit == 0:
            raise Forbidden(
                f"tenant {owner.name!r} may register no adapters: its quota `{quota}` is 0; ask an administrator",
                param="name",
            )
    max_bytes = owner.max_adapter_bytes
    if max_bytes is not None and num_bytes > max_bytes:
        raise InvalidRequest(
            f"the adapter has {num_bytes} bytes, and all adapters of tenant {owner.name!r} together may have"
            f" {max_bytes}; register a smaller one, or ask an administrator to raise `max_adapter_bytes`",
            param="name",
        )


async def _prune(change: Change, tenant: str, name: str, newest: int) -> None:
    """A name that is registered again and again must not grow. Followers need none of these: a newer one is served."""
    await change.connection.execute(
        delete(adapters).where(
            adapters.c.tenant == tenant,
            adapters.c.name == name,
            adapters.c.version <= newest - _KEPT_VERSIONS,
        )
    )
